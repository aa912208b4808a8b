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
		own, createOps(), randomOps(), mapOps(), reduceOps(), cumsumOps(), sortOps(), uniqueOps(), takeOps(), tableOps(), tableRowsOps(), tablePartitionOps(), tableAggregateOps(), tableSortOps(), tableJoinOps(), tableConcatOps(), shapeOps(),
		castOps(), matmulOps(), einsumOps(), linalgOps(), choleskyOps(), solveOps(), fftOps(), coreOps(), benchOps(),
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

// Linalg returns the names of the operations of linear algebra, sorted: those for which a GPU needs
// cuBLAS, and for which the CPU uses Env.Linalg.
func (r *Registry) Linalg() (names []string) {
	for _, name := range r.Names() {
		if slices.Contains(r.ops[name].Libraries, "cublas") {
			names = append(names, name)
		}
	}
	return names
}

// Names returns the names of all operations, sorted.
func (r *Registry) Names() []string { return slices.Sorted(maps.Keys(r.ops)) }
