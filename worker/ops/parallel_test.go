package ops

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// TestPiecesRunOnceOnAllCores: with three cores, three pieces run at the same time, and each piece
// runs once.
func TestPiecesRunOnceOnAllCores(t *testing.T) {
	ctx := WithEnv(context.Background(), Env{Cores: func() int { return 3 }})
	var together sync.WaitGroup
	together.Add(3)
	var runs [100]atomic.Int32
	if err := parallel(ctx, len(runs), func(i int) error {
		if runs[i].Add(1); i < 3 {
			together.Done()
			together.Wait() // until three pieces run
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for i := range runs {
		if n := runs[i].Load(); n != 1 {
			t.Errorf("piece %d ran %d times", i, n)
		}
	}
}

func TestParallelStopsAtAnErrorAndAtTheEndOfTheContext(t *testing.T) {
	broken := errors.New("broken")
	runs := 0
	if err := parallel(context.Background(), 100, func(i int) error {
		if runs++; i == 3 {
			return broken
		}
		return nil
	}); !errors.Is(err, broken) || runs != 4 {
		t.Errorf("%v after %d pieces", err, runs)
	}
	ctx, cancel := context.WithCancel(context.Background())
	runs = 0
	if err := parallel(ctx, 100, func(int) error {
		runs++
		cancel()
		return nil
	}); !errors.Is(err, context.Canceled) || runs != 1 {
		t.Errorf("%v after %d pieces", err, runs)
	}
}

// TestHelpersLeaveWhenOthersNeedTheProcessors: the number of cores is read again after each piece.
func TestHelpersLeaveWhenOthersNeedTheProcessors(t *testing.T) {
	var cores atomic.Int32
	cores.Store(4)
	ctx := WithEnv(context.Background(), Env{Cores: func() int { return int(cores.Load()) }})
	var started sync.WaitGroup
	started.Add(4)
	var alone sync.Mutex
	if err := parallel(ctx, 50, func(i int) error {
		if i < 4 {
			started.Done()
			started.Wait()
			cores.Store(1)
			return nil
		}
		if !alone.TryLock() {
			return errors.New("two pieces run at the same time on one core")
		}
		defer alone.Unlock()
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func TestAPanicOfAPieceIsOneOfTheCaller(t *testing.T) {
	ctx := WithEnv(t.Context(), Env{Cores: func() int { return 3 }})
	for bad := range 3 {
		func() {
			defer func() {
				if cause := fmt.Sprint(recover()); !strings.Contains(cause, "piece is wrong") || !strings.Contains(cause, "parallel_test.go") {
					t.Errorf("piece %d: recovered %q, want its panic and its place", bad, cause)
				}
			}()
			var begun sync.WaitGroup
			begun.Add(3) // each of the pieces has a goroutine of its own
			err := parallel(ctx, 3, func(piece int) error {
				begun.Done()
				begun.Wait()
				if piece == bad {
					panic("piece is wrong")
				}
				return nil
			})
			t.Errorf("piece %d: returned %v, want a panic", bad, err)
		}()
	}
}
