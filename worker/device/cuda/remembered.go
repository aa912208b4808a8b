package cuda

import (
	"encoding/binary"
	"sync"

	"github.com/millrace/millrace/worker/ops"
)

// remembered keeps what was decided for calls, to be found again by all that the
// decision depends on: calls of loops and templates come again with other data of the
// same types and shapes. Errors are not kept; a flood of different calls only empties
// it.
type remembered[T any] struct {
	mu    sync.Mutex // guards plans
	plans map[string]T
}

const (
	maxRemembered = 1024
	// maxKey is up to which size of their keys decisions are kept.
	maxKey = 1 << 10
)

// get finds what decide returned for the key, or calls it.
func (r *remembered[T]) get(key []byte, decide func() (T, error)) (T, error) {
	r.mu.Lock()
	known, ok := r.plans[string(key)]
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
	if r.plans == nil || len(r.plans) >= maxRemembered {
		r.plans = map[string]T{}
	}
	r.plans[string(key)] = made
	return made, nil
}

// keyRoom is what keys are made in; larger ones take memory.
type keyRoom [256]byte

// appendList adds a list of numbers with its length.
func appendList(key []byte, list []int64) []byte {
	key = append(key, byte(len(list)), byte(len(list)>>8))
	for _, n := range list {
		key = binary.AppendVarint(key, n)
	}
	return key
}

// appendTensor adds what decisions know of a tensor: not where it lies, but how what
// is loaded of it is aligned, at most to 16 bytes, and whether it is copied first.
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
