package soak

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
)

const (
	// smallBytes of scattered data outlive each worker; largeBytes may be lost with theirs.
	smallBytes, largeBytes = 20_000, 300_000
	// scattered is how many scattered values a client holds at the same time.
	scattered = 8
	// publishEvery is how many graphs are between two whose results are published.
	publishEvery = 5
)

// traffic is what clients do all the time, each in a loop of its own. A loop checks what it sees.
type traffic struct {
	c     *cluster
	loops sync.WaitGroup
	stop  chan struct{}
	// pause is the time between two requests of a loop, which bounds the load.
	pause time.Duration

	mu sync.Mutex // guards all below
	// acknowledged counts the requests of a kind that were acknowledged. last is when one was, and
	// longest the longest time between two.
	acknowledged map[string]int
	last         map[string]time.Time
	longest      map[string]time.Duration
	// unanswered counts the requests of which a client does not know whether they took effect.
	unanswered int
	// lost counts large scattered values that were lost with their worker.
	lost int
	// holders are those of locks, by name, and fences are the last fencing numbers.
	holders map[string]string
	fences  map[string]uint64
}

func startTraffic(c *cluster, pause time.Duration) *traffic {
	tr := &traffic{c: c, stop: make(chan struct{}), pause: pause, acknowledged: map[string]int{}, last: map[string]time.Time{}, longest: map[string]time.Duration{},
		holders: map[string]string{}, fences: map[string]uint64{}}
	tr.loop("graphs-0", tr.graphs)
	tr.loop("graphs-1", tr.graphs)
	tr.loop("locks-0", tr.locks)
	tr.loop("locks-1", tr.locks)
	tr.loop("locks-2", tr.locks)
	tr.loop("variables", tr.variables)
	tr.loop("producer", tr.produce)
	tr.loop("consumer", tr.consume)
	tr.loop("scatter", tr.scatter)
	return tr
}

// kinds are those of requests, each of which must go on.
var kinds = []string{"graph", "dataset", "lock", "variable", "put", "take", "scatter"}

func (tr *traffic) loop(name string, run func(name string, c *millrace.Client) error) {
	tr.c.t.Helper()
	client := tr.c.dial(name)
	tr.loops.Go(func() {
		if err := run(name, client); err != nil {
			tr.c.t.Errorf("%s: %v", name, err)
		}
	})
}

// end ends the loops, each of which looks for what it still has to find.
func (tr *traffic) end() {
	close(tr.stop)
	tr.loops.Wait()
}

// goes waits for the pause, and returns whether a loop goes on.
func (tr *traffic) goes() bool {
	select {
	case <-tr.stop:
		return false
	case <-time.After(tr.pause):
		return true
	}
}

func (tr *traffic) count(kind string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	now := time.Now()
	if last, ok := tr.last[kind]; ok {
		tr.longest[kind] = max(tr.longest[kind], now.Sub(last))
	}
	tr.last[kind] = now
	tr.acknowledged[kind]++
}

func (tr *traffic) counts() map[string]int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	all := map[string]int{}
	for kind, n := range tr.acknowledged {
		all[kind] = n
	}
	return all
}

// goesOn waits until each kind of request has been acknowledged again.
func (tr *traffic) goesOn() {
	tr.c.t.Helper()
	before := tr.counts()
	tr.c.until("each kind of request goes on", func(context.Context) bool {
		now := tr.counts()
		return tr.c.t.Failed() || !slices.ContainsFunc(kinds, func(kind string) bool { return now[kind] == before[kind] })
	})
}

// again repeats a request of which nobody knows whether it took effect, until it is acknowledged.
func (tr *traffic) again(ctx context.Context, request func() error) error {
	for {
		err := request()
		if !errors.Is(err, millrace.ErrUnavailable) || ctx.Err() != nil {
			return err
		}
		tr.mu.Lock()
		tr.unanswered++
		tr.mu.Unlock()
		time.Sleep(tr.pause) // the next leader is in another process
	}
}

func soon() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), eventTimeout)
}

// graphs submits graphs, checks their results, and publishes some. The published ones are there at
// the end.
func (tr *traffic) graphs(name string, c *millrace.Client) error {
	published := map[string]float64{}
	for n := 0; tr.goes(); n++ {
		want, err := tr.graph(name, n, c, published)
		if err != nil {
			return fmt.Errorf("graph %d, whose sum is %v: %w", n, want, err)
		}
	}
	for dataset, want := range published {
		ctx, cancel := soon()
		var value any
		err := tr.again(ctx, func() (err error) {
			value, err = c.Dataset(ctx, dataset)
			return err
		})
		if err == nil {
			err = check(ctx, value.(*millrace.Future), want)
		}
		cancel()
		if err != nil {
			return fmt.Errorf("the published dataset %s, whose sum is %v: %w", dataset, want, err)
		}
	}
	return nil
}

func (tr *traffic) graph(name string, n int, c *millrace.Client, published map[string]float64) (want float64, err error) {
	const leaves, length = 10, 10_000 // 80 kB each: not inline
	ctx, cancel := soon()
	defer cancel()
	g := c.NewGraph(fmt.Sprintf("%s-%d", name, n))
	args := []any{""}
	var terms []string
	for i := range leaves {
		leaf := g.Add(fmt.Sprintf("%s-%d-leaf-%d", name, n, i), millrace.Native("array.full"), millrace.Args([]int{length}, float64(n+i)))
		args = append(args, g.Add(fmt.Sprintf("%s-%d-part-%d", name, n, i), millrace.Native("array.reduce"), millrace.Args(leaf, "sum")))
		terms = append(terms, fmt.Sprintf("x%d", i))
		want += length * float64(n+i)
	}
	g.Add(fmt.Sprintf("%s-%d-sleep", name, n), millrace.Native("bench.sleep"), millrace.Args(0.05), millrace.Hold())
	args[0] = strings.Join(terms, "+")
	sum := g.Add(fmt.Sprintf("%s-%d-sum", name, n), millrace.Native("array.map"), millrace.Args(args...), millrace.Hold())
	run, err := g.Submit(ctx)
	if err != nil {
		return want, err
	}
	defer run.Release()
	if n%publishEvery == 0 {
		dataset := fmt.Sprintf("%s-%d", name, n)
		err := tr.again(ctx, func() error { return c.Publish(ctx, dataset, run.Future(sum), true) })
		if err != nil {
			return want, fmt.Errorf("publish: %w", err)
		}
		published[dataset] = want
		tr.count("dataset")
	}
	if err := run.Wait(ctx); err != nil {
		return want, err
	}
	tr.count("graph")
	return want, check(ctx, run.Future(sum), want)
}

// check checks a result of one number.
func check(ctx context.Context, f *millrace.Future, want float64) error {
	a, err := f.Array(ctx)
	if err != nil {
		return err
	}
	got, err := millrace.Slice[float64](a)
	if err == nil && (len(got) != 1 || got[0] != want) {
		err = fmt.Errorf("the result is %v", got)
	}
	return err
}

// locks acquires two locks in turn. Each has one holder, and the fencing numbers grow.
func (tr *traffic) locks(name string, c *millrace.Client) error {
	for n := 0; tr.goes(); n++ {
		lock := fmt.Sprint("lock-", n%2)
		if err := tr.lock(name, lock, c.Lock(lock)); err != nil {
			return fmt.Errorf("%s: %w", lock, err)
		}
		tr.count("lock")
	}
	return nil
}

func (tr *traffic) lock(name, lock string, l *millrace.Lock) error {
	ctx, cancel := soon()
	defer cancel()
	if err := l.Acquire(ctx); err != nil {
		return err
	}
	if err := tr.hold(lock, name, l.Fence()); err != nil {
		return err
	}
	tr.goes() // it is held for that time
	tr.mu.Lock()
	tr.holders[lock] = ""
	tr.mu.Unlock()
	return l.Release(ctx)
}

func (tr *traffic) hold(lock, name string, fence uint64) error {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if tr.holders[lock] != "" {
		return fmt.Errorf("%s holds it, too", tr.holders[lock])
	}
	if fence <= tr.fences[lock] {
		return fmt.Errorf("its fencing number was %d, and is %d now", tr.fences[lock], fence)
	}
	tr.holders[lock], tr.fences[lock] = name, fence
	return nil
}

// variables sets a variable to growing numbers. Its value is never older than what was
// acknowledged.
func (tr *traffic) variables(name string, c *millrace.Client) error {
	for n := 1; tr.goes(); n++ {
		ctx, cancel := soon()
		err := tr.again(ctx, func() error { return c.SetVariable(ctx, name, n) })
		var got any
		if err == nil {
			tr.count("variable")
			got, err = c.Variable(ctx, name)
		}
		if err == nil && fmt.Sprint(got) != fmt.Sprint(n) {
			err = fmt.Errorf("it has the value %v", got)
		}
		cancel()
		if err != nil {
			return fmt.Errorf("value %d: %w", n, err)
		}
	}
	return nil
}

// queueName is the queue between produce and consume, and queueEnd the value that ends it.
const queueName, queueEnd = "queue", -1

// produce puts growing numbers into a queue.
func (tr *traffic) produce(_ string, c *millrace.Client) error {
	q := c.Queue(queueName, 50)
	for n := 0; ; n++ {
		value := n
		if !tr.goes() {
			value = queueEnd
		}
		ctx, cancel := soon()
		err := q.Put(ctx, value)
		cancel()
		if err != nil || value == queueEnd {
			return err
		}
		tr.count("put")
	}
}

// consume takes the values of produce: each once, in their order.
func (tr *traffic) consume(_ string, c *millrace.Client) error {
	q := c.Queue(queueName, 50)
	for n := 0; ; n++ {
		ctx, cancel := soon()
		got, err := q.Take(ctx)
		cancel()
		if err != nil {
			return fmt.Errorf("value %d: %w", n, err)
		}
		if fmt.Sprint(got) == fmt.Sprint(queueEnd) {
			return nil
		}
		if fmt.Sprint(got) != fmt.Sprint(n) {
			return fmt.Errorf("value %v instead of %d", got, n)
		}
		tr.count("take")
	}
}

// scatter scatters values, and reads each of them some time later.
func (tr *traffic) scatter(_ string, c *millrace.Client) error {
	type held struct {
		future *millrace.Future
		value  string
	}
	var all []held
	read := func() error {
		h := all[0]
		all = all[1:]
		ctx, cancel := soon()
		defer cancel()
		defer h.future.Release()
		got, err := millrace.Get[string](ctx, h.future)
		if errors.Is(err, millrace.ErrObjectLost) && len(h.value) == largeBytes {
			tr.mu.Lock()
			tr.lost++
			tr.mu.Unlock()
			return nil
		}
		if err == nil && got != h.value {
			err = fmt.Errorf("%d bytes that begin with %.20q came", len(got), got)
		}
		if err != nil {
			return fmt.Errorf("%d bytes that begin with %.20q: %w", len(h.value), h.value, err)
		}
		return nil
	}
	for n := 0; tr.goes(); n++ {
		size := smallBytes
		if n%4 == 0 {
			size = largeBytes
		}
		mark := fmt.Sprintf("%010d", n)
		value := strings.Repeat(mark, size/len(mark))
		ctx, cancel := soon()
		f, err := c.Scatter(ctx, value)
		cancel()
		if err != nil {
			// No worker was there, or it died before all was written. Nothing is acknowledged.
			tr.mu.Lock()
			tr.unanswered++
			tr.mu.Unlock()
			continue
		}
		tr.count("scatter")
		if all = append(all, held{f, value}); len(all) > scattered {
			if err := read(); err != nil {
				return err
			}
		}
	}
	for len(all) > 0 {
		if err := read(); err != nil {
			return err
		}
	}
	return nil
}
