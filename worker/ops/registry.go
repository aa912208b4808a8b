package ops

import (
	"maps"
	"slices"
)

// Registry finds operations by name. It does not change after its creation.
type Registry struct {
	ops map[string]*Op
}

// NewRegistry returns a registry with the operations that all devices have, and with own, those of
// this device only.
func NewRegistry(own ...*Op) *Registry {
	r := &Registry{ops: map[string]*Op{}}
	for _, group := range [][]*Op{
		own, createOps(), randomOps(), mapOps(), reduceOps(), cumsumOps(), matmulOps(), choleskyOps(), solveOps(), einsumOps(), shapeOps(), castOps(), linalgOps(), orderOps(), fourierOps(), coreOps(), benchOps(),
	} {
		for _, op := range group {
			if r.ops[op.Name] != nil {
				panic("ops: two operations are named " + op.Name)
			}
			r.ops[op.Name] = op
		}
	}
	return r
}

// Lookup finds an operation. The error for an unknown name lists similar names.
func (r *Registry) Lookup(name string) (*Op, error) {
	if op, ok := r.ops[name]; ok {
		return op, nil
	}
	return nil, &Error{Kind: UnknownOp, Op: name, Reason: "no such operation" + suggest(name, r.Names())}
}

// Names returns the names of all operations, sorted.
func (r *Registry) Names() []string { return slices.Sorted(maps.Keys(r.ops)) }
