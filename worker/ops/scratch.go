package ops

import (
	"context"
	"errors"
	"fmt"
	"math"
	"unsafe"

	"github.com/millrace/millrace/worker/ops/lapack"
)

// ErrNoScratch is matched by the error of an operation that needs more working memory than it can
// get.
var ErrNoScratch = errors.New("no room for working memory")

// Scratch provides working memory: bytes that an operation needs in addition to its outputs while
// it runs.
type Scratch interface {
	// Scratch returns that many bytes, aligned to 16, with arbitrary content. They belong to the
	// call until Planned.Run has returned; then the provider takes them back.
	Scratch(bytes int64) ([]byte, error)
}

// Env is the information that an operation has about the attempt that runs it. The zero Env is a
// first attempt with working memory from the Go heap.
type Env struct {
	// Attempt counts from one; 0 means one. Only bench.fail and bench.stamp use it.
	Attempt int
	// Scratch provides working memory of more than smallScratchBytes. If it is nil, the memory
	// comes from the Go heap, up to heapScratchBytes per request.
	Scratch Scratch
	// Cores returns the number of processors that the call may use at this moment, its own
	// goroutine's included. The number changes while other calls begin and end. Nil means one.
	Cores func() int
	// Linalg is the library for linear algebra. Nil: pure Go, which is many times slower.
	Linalg *lapack.Library
}

// cores returns the number of processors that the call may use now, at least one.
func (e Env) cores() int {
	if e.Cores == nil {
		return 1
	}
	return max(e.Cores(), 1)
}

type envKey struct{}

// WithEnv returns a context that carries the Env for operations that run with it.
func WithEnv(ctx context.Context, env Env) context.Context {
	return context.WithValue(ctx, envKey{}, env)
}

func envOf(ctx context.Context) Env {
	env, _ := ctx.Value(envKey{}).(Env)
	env.Attempt = max(env.Attempt, 1)
	return env
}

const (
	// smallScratchBytes is the size up to which working memory always comes from the Go heap.
	smallScratchBytes = 64 << 10
	// heapScratchBytes limits one piece of working memory from the Go heap, if there is no Scratch.
	// A broadcast input of a few bytes may request any size.
	heapScratchBytes = 4 << 30
)

// scratchBytes returns working memory that is aligned for every type. Its content is undefined.
func scratchBytes(ctx context.Context, bytes int64) ([]byte, error) {
	env := envOf(ctx)
	switch {
	case bytes < 0 || bytes > math.MaxInt64/16:
		return nil, fmt.Errorf("%w: %d bytes are more than any memory", ErrNoScratch, bytes)
	case bytes > smallScratchBytes && env.Scratch != nil:
		data, err := env.Scratch.Scratch(bytes)
		if err != nil {
			return nil, fmt.Errorf("%w of %d bytes: %w", ErrNoScratch, bytes, err)
		}
		return data, nil
	case bytes > heapScratchBytes:
		return nil, fmt.Errorf("%w: %d bytes are needed beside the result, %d at a time may be used", ErrNoScratch, bytes, int64(heapScratchBytes))
	}
	return heapBytes(bytes), nil
}

// heapBytes returns zeroed memory from the Go heap. It allocates 16-byte elements instead of bytes,
// so that the memory is aligned for every type.
func heapBytes(bytes int64) []byte {
	words := make([]complex128, (bytes+15)/16)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), bytes)
}

// scratchTensor returns a C-contiguous tensor in working memory, with arbitrary content.
func scratchTensor(ctx context.Context, dtype DType, shape []int64) (*Tensor, error) {
	n, err := countElements(shape)
	if err != nil {
		return nil, err
	}
	if n > math.MaxInt64/16 {
		return nil, fmt.Errorf("%w: shape %v of %v is larger than any memory", ErrNoScratch, shape, dtype)
	}
	data, err := scratchBytes(ctx, n*dtype.Size())
	if err != nil {
		return nil, err
	}
	return contiguous(dtype, shape, data), nil
}

// scratchFloats returns n numbers in working memory, with arbitrary content.
func scratchFloats(ctx context.Context, n int) ([]float64, error) {
	return scratchElements[float64](ctx, n)
}

// scratchElements returns n elements in working memory, with arbitrary content.
func scratchElements[T any](ctx context.Context, n int) ([]T, error) {
	var zero T
	size := int64(unsafe.Sizeof(zero))
	if int64(n) > math.MaxInt64/size {
		return nil, fmt.Errorf("%w: %d elements are more than any memory", ErrNoScratch, n)
	}
	data, err := scratchBytes(ctx, int64(n)*size)
	if err != nil || n == 0 {
		return nil, err
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(data))), n), nil
}
