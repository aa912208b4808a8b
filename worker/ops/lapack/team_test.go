//go:build cgo

package lapack

import (
	"runtime"
	"slices"
	"sync"
	"testing"
)

// multiply returns a matrix of n rows times itself, on a number of threads.
func multiply(t *testing.T, team Team, a []float64, n int) []float64 {
	t.Helper()
	c := make([]float64, n*n)
	if _, err := team.Call("dgemm", Letter('N'), Letter('N'), Int(n), Int(n), Int(n), Float64(1), Array(a), Int(n),
		Array(a), Int(n), Float64(0), Array(c), Int(n)); err != nil {
		t.Error(err)
	}
	runtime.KeepAlive(a)
	return c
}

func TestCallsOfOneAndOfSeveralThreadsRunTogether(t *testing.T) {
	l := numpys(t)
	const n = 96
	a := make([]float64, n*n)
	for i := range a {
		a[i] = float64(i % 7) // whole numbers: the product is exact in any order
	}
	want := multiply(t, l.Team(1), a, n)
	var calls sync.WaitGroup
	for i := range 8 {
		calls.Go(func() {
			for range 20 {
				if !slices.Equal(multiply(t, l.Team(1+i%3), a, n), want) {
					t.Errorf("another product with %d threads", 1+i%3)
					return
				}
			}
		})
	}
	calls.Wait()
}

// counting is a library's number of threads, and what calls saw of it.
type counting struct {
	mu      sync.Mutex
	threads int
	log     []int
}

func (c *counting) set(threads int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.threads = threads
}

func (c *counting) call() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log = append(c.log, c.threads)
}

func TestTheNumberOfThreadsHoldsForOneCall(t *testing.T) {
	c := &counting{threads: 7}
	p := newProcessWide(c.set)
	p.run(3, c.call)
	p.run(1, c.call)
	if want := []int{3, 1}; !slices.Equal(c.log, want) {
		t.Errorf("the calls ran with %v threads, want %v", c.log, want)
	}
}

// TestOneThreadStaysOneThread: a call of several threads waits for those of one thread, which all
// run at the same time.
func TestOneThreadStaysOneThread(t *testing.T) {
	c := &counting{threads: 7}
	p := newProcessWide(c.set)
	var together, calls sync.WaitGroup
	together.Add(2)
	started := make(chan struct{})
	for range 2 {
		calls.Go(func() {
			p.run(1, func() {
				together.Done()
				together.Wait()
				<-started // the call of several threads has begun to wait, or will
				c.call()
			})
		})
	}
	together.Wait()
	calls.Go(func() {
		close(started)
		p.run(2, c.call)
	})
	calls.Wait()
	if want := []int{1, 1, 2}; !slices.Equal(c.log, want) {
		t.Errorf("the calls ran with %v threads, want %v", c.log, want)
	}
}

// TestCallsAtTheSameTimeAreBounded: a library has buffers for a number of calls only.
func TestCallsAtTheSameTimeAreBounded(t *testing.T) {
	p := newProcessWide(func(int) {})
	var mu sync.Mutex
	running, most := 0, 0
	full := make(chan struct{})
	var calls sync.WaitGroup
	for range 3 * maxCalls {
		calls.Go(func() {
			p.run(1, func() {
				mu.Lock()
				running++
				if most = max(most, running); most == maxCalls {
					select {
					case <-full:
					default:
						close(full)
					}
				}
				mu.Unlock()
				<-full // until as many as may run do
				mu.Lock()
				running--
				mu.Unlock()
			})
		})
	}
	calls.Wait()
	if most != maxCalls {
		t.Errorf("%d calls ran at the same time, want %d", most, maxCalls)
	}
}
