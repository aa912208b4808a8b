package loop

import (
	"bytes"
	"maps"
	"slices"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/worker/lifecycle"
)

// functions are the pickled functions that the scheduler has sent and not dropped.
type functions struct {
	known map[ids.FunctionHash]*millracev1.Function
	// executors may be nil.
	executors Executors
}

// of returns the function of an operation, nil if it is not here.
func (f *functions) of(o *op) *millracev1.Function { return f.known[hash32(o.pb.GetFunction())] }

// add stores functions. Attempts may wait for them.
func (f *functions) add(list []*millracev1.Function) lifecycle.FunctionsCame {
	e := lifecycle.FunctionsCame{Functions: make([]ids.FunctionHash, len(list))}
	for i, x := range list {
		e.Functions[i] = hash32(x.GetHash())
		f.known[e.Functions[i]] = x
	}
	return e
}

// drop forgets functions that no task refers to.
func (f *functions) drop(hashes [][]byte) {
	for _, hash := range hashes {
		delete(f.known, hash32(hash))
	}
	if f.executors != nil {
		f.executors.DropFunctions(hashes)
	}
}

// hashes names all functions, in ascending order.
func (f *functions) hashes() (list [][]byte) {
	for _, hash := range slices.SortedFunc(maps.Keys(f.known), func(a, b ids.FunctionHash) int { return bytes.Compare(a[:], b[:]) }) {
		list = append(list, hash[:])
	}
	return list
}

func hash32(b []byte) (h [32]byte) {
	copy(h[:], b)
	return h
}
