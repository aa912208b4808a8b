//go:build cgo && linux

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// pair is a cluster with two workers on GPUs, and a client.
type pair struct {
	*cluster
	client *millrace.Client
	a, b   *millracev1.Worker
}

func startPair(t *testing.T, args ...string) *pair {
	t.Helper()
	needs(t, 2)
	c, _ := startGPUs(t, 2, args...)
	p := &pair{cluster: c, client: c.dial(t)}
	within(t, "two workers with paths to each other", func() bool {
		list, err := p.client.FullWorkers(soon(t), millracev1.WorkerState_WORKER_STATE_ACTIVE)
		if err != nil || len(list) != 2 || routesTo(t, list[0], list[1])+routesTo(t, list[1], list[0]) != 2 {
			return false
		}
		slices.SortFunc(list, func(a, b *millracev1.Worker) int { return strings.Compare(a.GetName(), b.GetName()) })
		p.a, p.b = list[0], list[1]
		return true
	})
	return p
}

func (p *pair) run(t *testing.T, at *millracev1.Worker, name string, args millrace.Arguments) *millrace.Future {
	t.Helper()
	f, err := p.client.Submit(soon(t), millrace.Native(name), args, millrace.WithWorkers(at.GetName()))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Wait(soon(t)); err != nil {
		t.Fatal(err)
	}
	return f
}

// receivedBytes returns the number of bytes that a worker has received by ipc, once it reports at
// least the given number.
func (p *pair) receivedBytes(t *testing.T, to *millracev1.Worker, least uint64) (bytes uint64) {
	t.Helper()
	within(t, fmt.Sprintf("%s reports %d bytes", to.GetName(), least), func() bool {
		list, err := p.client.FullWorkers(soon(t))
		if err != nil {
			return false
		}
		for _, w := range list {
			if w.GetWorkerId() != to.GetWorkerId() {
				continue
			}
			for _, l := range w.GetRoutes() {
				if l.GetPath() == millracev1.TransferPath_TRANSFER_PATH_IPC {
					bytes = l.GetReceivedBytes()
				}
			}
		}
		return bytes >= least
	})
	return bytes
}

// replicas returns the workers that have a result.
func (p *pair) replicas(t *testing.T, f *millrace.Future) []string {
	t.Helper()
	task, err := p.client.Task(soon(t), f.Key())
	if err != nil {
		t.Fatal(err)
	}
	return task.GetReplicas()
}

// For a slice of an array on another GPU, and for pieces from there that are joined, only their own
// bytes travel: the array stays on its GPU and is copied nowhere.
func TestGPUSliceOfARemoteArray(t *testing.T) {
	p := startPair(t, "--device-memory-limit", "64MiB", "--pinned-limit", "16MiB")
	const large, from, to = 20 << 20, 3 << 20, 5<<20 + 1000
	array := p.run(t, p.a, "bench.stamp", millrace.Args(1, large, []int64{}))
	whole, err := array.Array(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	content, err := millrace.Slice[uint8](whole)
	if err != nil {
		t.Fatal(err)
	}
	slice, err := p.client.Submit(soon(t), millrace.Native("array.slice"), millrace.Args(array, from, to), millrace.WithWorkers(p.b.GetName()))
	if err != nil {
		t.Fatal(err)
	}
	checkArray(t, slice, content[from:to])
	if got := p.receivedBytes(t, p.b, to-from); got != to-from {
		t.Errorf("%d bytes were received for a slice of %d", got, to-from)
	}
	if at := p.replicas(t, array); !slices.Equal(at, []string{p.a.GetName()}) {
		t.Errorf("the array is at %v", at)
	}
	joined := p.run(t, p.b, "array.concat", millrace.Args(array, slice))
	checkArray(t, joined, append(slices.Clone(content), content[from:to]...))
	if got := p.receivedBytes(t, p.b, to-from+large); got != to-from+large {
		t.Errorf("%d bytes were received for a slice of %d and all %d", got, to-from, large)
	}
	if at := p.replicas(t, array); !slices.Equal(at, []string{p.a.GetName()}) {
		t.Errorf("the array is at %v", at)
	}
}

// An object that is read often becomes a replica. A large object becomes one at once if the
// operation that reads it does more than move bytes.
func TestGPUReadOftenBecomesAReplica(t *testing.T) {
	p := startPair(t, "--device-memory-limit", "64MiB", "--pinned-limit", "16MiB")
	const small, large = 100 << 10, 8 << 20
	one := p.run(t, p.a, "bench.stamp", millrace.Args(1, small, []int64{}))
	for i := range 6 {
		p.run(t, p.b, "bench.stamp", millrace.Args(10+i, 64, []int64{1}, one))
		want := []string{p.a.GetName()}
		if i >= 4 {
			want = append(want, p.b.GetName())
		}
		if at := p.replicas(t, one); len(at) != len(want) {
			t.Errorf("after it was read %d times it is at %v", i+1, at)
		}
	}
	other := p.run(t, p.a, "bench.stamp", millrace.Args(2, large, []int64{}))
	p.run(t, p.b, "bench.stamp", millrace.Args(20, 64, []int64{2}, other))
	if at := p.replicas(t, other); len(at) != 2 {
		t.Errorf("%d bytes are at %v", large, at)
	}
}

// A ring of points on two GPUs passes small objects around. They are read in place while their
// sources are killed: every read returns the right bytes, or is repeated.
func TestGPUReadersInPlaceOutliveTheirSources(t *testing.T) {
	p := startPair(t, "--device-memory-limit", "64MiB", "--pinned-limit", "16MiB")
	const steps, width, bytes = 60, 4, 64 << 10
	killed := int64(0)
	for round := range 3 {
		// The one that was killed in the round before is listed until the scheduler notices.
		var list []*millracev1.Worker
		within(t, "two workers live", func() bool {
			var err error
			list, err = p.client.Workers(soon(t), millracev1.WorkerState_WORKER_STATE_ACTIVE)
			return err == nil && len(list) == 2 && !slices.ContainsFunc(list, func(w *millracev1.Worker) bool { return w.GetPid() == killed })
		})
		g := p.client.NewGraph("ring")
		key := func(step, point int) millrace.Key {
			return millrace.Key(fmt.Sprintf("ring-%d-%d-%d", round, step, point))
		}
		number := func(step, point int) int64 { return int64(step*width + point) }
		for step := range steps {
			for point := range width {
				args := []any{number(step, point), bytes, []int64{}}
				if step > 0 {
					left, right := (point+width-1)%width, (point+1)%width
					args = []any{
						number(step, point), bytes, []int64{number(step-1, left), number(step-1, point), number(step-1, right)},
						key(step-1, left), key(step-1, point), key(step-1, right),
					}
				}
				// The first round counts bytes, so each point has to run on its own worker,
				// however busy that is. In the other rounds a worker dies, and its points may move.
				at := []string{p.a.GetName(), p.b.GetName()}[point%2]
				options := []millrace.TaskOption{millrace.WithWorkers(at)}
				if round > 0 {
					options[0] = millrace.WithPreferredWorkers(at)
				}
				if step == steps-1 {
					options = append(options, millrace.Hold())
				}
				g.Add(string(key(step, point)), millrace.Native("bench.stamp"), millrace.Args(args...), options...)
			}
		}
		r, err := g.Submit(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		if round > 0 {
			killed = list[round%len(list)].GetPid()
			if err := syscall.Kill(int(killed), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Wait(soon(t)); err != nil {
			t.Fatalf("round %d: %v\n%s", round, err, p.log.String())
		}
		if round == 0 { // each object crosses at least once to the other worker
			p.receivedBytes(t, p.a, (steps-1)*width/2*bytes)
			p.receivedBytes(t, p.b, (steps-1)*width/2*bytes)
		}
		r.Release()
	}
}
