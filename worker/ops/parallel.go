package ops

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// parallel calls f for the pieces 0 to n-1, each once, in any order, on as many goroutines as the
// call may use processors; see Env.Cores. That number is read again after each piece, so a piece
// should take between 0.1 ms and some 10 ms. It returns the first error, after all goroutines have
// ended; pieces that have not begun by then are left out. The result of an operation must not
// depend on the number of goroutines: the pieces depend on the arguments alone. A panic of a piece
// becomes one of the caller's goroutine, which fails only the task.
func parallel(ctx context.Context, n int, f func(piece int) error) error {
	env := envOf(ctx)
	helpers := min(env.cores(), n) - 1
	var next, stopped atomic.Int64
	var once sync.Once
	var failure error
	work := func(helper int) {
		for helper == 0 || helper < env.cores() {
			piece := int(next.Add(1)) - 1
			if piece >= n || stopped.Load() != 0 {
				return
			}
			err := ctx.Err()
			if err == nil {
				err = guarded(f, piece)
			}
			if err != nil {
				once.Do(func() { failure = err })
				stopped.Store(1)
			}
		}
	}
	var wait sync.WaitGroup
	for helper := 1; helper <= helpers; helper++ {
		wait.Go(func() { work(helper) })
	}
	work(0)
	wait.Wait()
	if p := (*pieceError)(nil); errors.As(failure, &p) {
		panic(p.Error())
	}
	return failure
}

// pieces returns the number of pieces of a length into which n elements are cut. The last one may
// be shorter.
func pieces[N int | int64](n, length N) N { return (n + length - 1) / length }

// eachPiece calls f for parts of the numbers 0 to n-1, in parallel: each part has size numbers, the
// last one perhaps fewer.
func eachPiece[N int | int64](ctx context.Context, n, size N, f func(from, to N) error) error {
	return parallel(ctx, int(pieces(n, size)), func(piece int) error {
		from := N(piece) * size
		return f(from, min(from+size, n))
	})
}

// onOneProcessor returns the context for a piece of work: it uses no further processors.
func onOneProcessor(ctx context.Context) context.Context {
	env := envOf(ctx)
	env.Cores = nil
	return WithEnv(ctx, env)
}

// pieceError is a panic of a piece.
type pieceError struct {
	cause any
	stack []byte
}

func (p *pieceError) Error() string { return fmt.Sprintf("%v\n%s", p.cause, p.stack) }

// guarded calls f and returns its panic as a *pieceError.
func guarded(f func(piece int) error, piece int) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = &pieceError{cause, debug.Stack()}
		}
	}()
	return f(piece)
}
