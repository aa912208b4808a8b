package cuda

import (
	"encoding/binary"
	"sync"

	"github.com/millrace/millrace/worker/ops"
)

// remembered keeps the decisions made for calls. The key of a decision contains all that it depends
// on: in loops and templates, calls are repeated with other data of the same types and shapes.
// Errors are not kept. When it is full, all decisions are dropped.
type remembered[T any] struct {
	mu    sync.Mutex // guards the fields below
	plans map[string]T
	drops int // calls of drop
}

const (
	maxRemembered = 1024
	// maxKey is the largest size of a key in bytes. Decisions with longer keys are not kept.
	maxKey = 1 << 10
)

// get returns the decision for the key. If there is none, it calls decide.
func (r *remembered[T]) get(key []byte, decide func() (T, error)) (T, error) {
	r.mu.Lock()
	known, ok := r.plans[string(key)]
	drops := r.drops
	r.mu.Unlock()
	if ok {
		return known, nil
	}
	made, err := decide()
	if err != nil || len(key) > maxKey {
		return made, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.drops != drops {
		return made, nil // it may depend on what the caller of drop has changed
	}
	if r.plans == nil || len(r.plans) >= maxRemembered {
		r.plans = map[string]T{}
	}
	r.plans[string(key)] = made
	return made, nil
}

// drop drops all decisions. Those that are being made now will not be kept.
func (r *remembered[T]) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.plans = nil
	r.drops++
}

// keyRoom is a buffer for keys; longer keys are allocated on the heap.
type keyRoom [256]byte

// appendList appends a list of numbers with its length.
func appendList(key []byte, list []int64) []byte {
	key = append(key, byte(len(list)), byte(len(list)>>8))
	for _, n := range list {
		key = binary.AppendVarint(key, n)
	}
	return key
}

// appendTensor appends the properties of a tensor that decisions depend on. The address is not
// among them, only its alignment (up to 16 bytes) and whether the tensor has to be copied to the
// device first.
func appendTensor(key []byte, t *ops.Tensor) []byte {
	if t == nil {
		return append(key, 'n')
	}
	if t.Far != nil {
		key = append(key, 'f', byte((t.Far.Address()+uint64(t.Offset))%16))
	} else {
		key = append(key, 'd')
	}
	return appendList(appendList(append(key, byte(t.DType)), t.Shape), t.Strides)
}
