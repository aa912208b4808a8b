package sim

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/server/coord"
	"github.com/millrace/millrace/server/schedapi"
)

// coordination has the locks, queues and variables that the clients use, as the scheduler has
// acknowledged them. Answers are compared with it when they leave the scheduler.
type coordination struct {
	w *world
	// rng is apart, so that all else is as it would be without coordination.
	rng *rand.Rand
	// asks are the calls that wait in the scheduler, by number. ended are those that ended in the
	// current step.
	asks           map[uint64]*ask
	last, requests uint64
	mu             sync.Mutex
	// ended is guarded by mu.
	ended []*ask

	// held are the grants that have not been given back, by lock; fences are their last numbers.
	held   map[string]grant
	fences map[string]uint64
	// items are the values that were put into queues.
	items []*item
	// doubtful are the requests that may have taken values without being told.
	doubtful  map[string]doubt
	variables map[string]*variable
	// reads has the number of values that a variable had had when a request first read it.
	reads map[string]int
}

// variable has the values that a variable was given, in order, and those that somebody tries to
// give it.
type variable struct {
	values []uint64
	tried  map[uint64]bool
}

// grant is a lock that a client has by a request.
type grant struct {
	client  *client
	request string
	fence   uint64
}

// item is a value that was put into a queue. acknowledged: the scheduler has said so. taker is the
// request that got it.
type item struct {
	queue        string
	acknowledged bool
	taker        string
}

// doubt is a number of values that may have been taken from a queue.
type doubt struct {
	queue string
	most  int
}

// ask is a call that waits in the scheduler.
type ask struct {
	number uint64
	cancel context.CancelFunc
	answer coord.Answer
	err    error
	then   func(coord.Answer, error)
}

func newCoordination(w *world) *coordination {
	return &coordination{
		w: w, rng: rand.New(rand.NewPCG(w.seed, 1)), asks: map[uint64]*ask{},
		held: map[string]grant{}, fences: map[string]uint64{}, doubtful: map[string]doubt{}, variables: map[string]*variable{}, reads: map[string]int{},
	}
}

func (o *coordination) between(low, high time.Duration) time.Duration {
	return low + time.Duration(o.rng.Float64()*float64(high-low))
}

func (o *coordination) chance(p float64) bool { return o.rng.Float64() < p }
func (o *coordination) fault(p float64) bool  { return !o.w.faultsOver && o.chance(p) }

// ask makes a call to the scheduler, which may wait in it. then follows its end, behind the step.
func (o *coordination) ask(place schedapi.Place, call coord.Call, then func(coord.Answer, error)) *ask {
	ctx, cancel := context.WithCancel(context.Background())
	o.last++
	a := &ask{number: o.last, cancel: cancel, then: then}
	o.asks[a.number] = a
	o.w.background.run(func() {
		go o.w.background.guarded(func() {
			a.answer, a.err = o.w.server.loop.Ask(ctx, place, call)
			o.mu.Lock()
			defer o.mu.Unlock()
			o.ended = append(o.ended, a)
		})
	})
	o.w.server.settle()
	return a
}

// settle goes on with the calls that have ended. It says whether there were any.
func (o *coordination) settle() bool {
	o.mu.Lock()
	list := o.ended
	o.ended = nil
	o.mu.Unlock()
	slices.SortFunc(list, func(x, y *ask) int { return cmp.Compare(x.number, y.number) })
	for _, a := range list {
		delete(o.asks, a.number)
		a.cancel()
		a.then(a.answer, a.err)
		o.w.server.settle()
	}
	return len(list) > 0
}

// hangUp ends all calls: the scheduler was killed.
func (o *coordination) hangUp() {
	for _, number := range slices.Sorted(maps.Keys(o.asks)) {
		o.asks[number].cancel()
		synctest.Wait()
	}
}

// coordinate does one thing with a lock, a queue or a variable.
func (c *client) coordinate() {
	o := c.w.coordination
	o.requests++
	request := fmt.Sprintf("q%d", o.requests)
	name := fmt.Sprintf("%s/%d", c.namespace, o.rng.IntN(2))
	call := coord.Call{ID: request, Wait: o.between(0, 2*time.Second), Keep: true}
	switch o.rng.IntN(5) {
	case 0, 1:
		call.Ask = coord.Acquire{Names: []string{name}, Limit: 1, Needed: 1}
		c.ask(call, name, func() {
			c.coordinateLater(o.between(0, time.Second), func() { c.giveBack(name, request) })
		})
	case 2:
		n := uint64(len(o.items))
		o.items = append(o.items, &item{queue: name})
		call.Ask = coord.PutInQueue{Name: name, MaxSize: 3, Value: numbered(n)}
		c.ask(call, name, func() {})
	case 3:
		call.Ask = coord.TakeFromQueue{Name: name, Most: 1 + o.rng.IntN(2)}
		c.ask(call, name, func() {})
	case 4:
		v := o.variables[name]
		if v == nil {
			v = &variable{tried: map[uint64]bool{}}
			o.variables[name] = v
		}
		if o.chance(0.5) {
			o.reads[request] = len(v.values)
			call.Ask = coord.ReadVariable{Name: name}
			c.ask(call, name, func() {})
			return
		}
		value := o.rng.Uint64()
		c.tell("set variable "+name, func() error {
			v.tried[value] = true
			err := c.w.server.loop.SetVariable(context.Background(), schedapi.Place{Client: c.id}, name, numbered(value))
			if err == nil {
				delete(v.tried, value)
				v.values = append(v.values, value)
			}
			return err
		})
	}
}

// coordinateLater is after, and counts as a call in progress.
func (c *client) coordinateLater(d time.Duration, do func()) {
	c.pending++
	c.after(d, func() {
		c.pending--
		do()
	})
}

// ask makes a call that may wait, until it is answered or the client gives up. met follows if it
// got what it asked for.
func (c *client) ask(call coord.Call, name string, met func()) {
	w, o := c.w, c.w.coordination
	again := func() {
		c.coordinateLater(o.between(50*time.Millisecond, 500*time.Millisecond), func() { c.ask(call, name, met) })
	}
	c.coordinateLater(o.between(50*time.Microsecond, time.Millisecond), func() {
		if !w.server.up || o.fault(2*w.plan.drop) {
			again()
			return
		}
		w.log("client %s: %s %s", c.id, call.ID, call.Ask)
		c.pending++
		a := o.ask(schedapi.Place{Client: c.id}, call, func(answer coord.Answer, err error) {
			c.pending--
			w.log("client %s: %s: %v %v", c.id, call.ID, answer.Met, err)
			if err == nil {
				o.check(c, call, name, answer)
			}
			if take, is := call.Ask.(coord.TakeFromQueue); is && err != nil {
				o.doubtful[taker(c, call.ID)] = doubt{name, take.Most}
			}
			refused := (*coord.Error)(nil)
			switch {
			case c.gone:
			case errors.Is(err, context.Canceled), unwritten(err), err == nil && o.fault(2*w.plan.drop):
				again()
			case errors.As(err, &refused) && refused.Kind == coord.ErrClientGone && (c.over || w.now.Sub(c.renewed) > clientTTL-time.Second):
				c.crash()
			case err != nil:
				c.checkError("ask", err)
			case answer.Met:
				met()
			case o.chance(0.5):
				again()
			default:
				c.giveUp(call.ID)
			}
		})
		if o.fault(0.1) {
			w.after(o.between(0, time.Second), a.cancel) // the connection breaks
		}
		c.asks = append(c.asks, a)
	})
}

// tell makes a call that does not wait, until it is answered.
func (c *client) tell(what string, serve func() error) {
	w, o := c.w, c.w.coordination
	c.coordinateLater(o.between(50*time.Microsecond, time.Millisecond), func() {
		lost, unanswered := o.fault(2*w.plan.drop), o.fault(2*w.plan.drop)
		if w.server.up && !lost {
			w.log("client %s: %s", c.id, what)
			err := serve()
			w.server.settle()
			if !unwritten(err) {
				if c.checkError(what, err); c.gone || !unanswered {
					return
				}
			}
		}
		c.coordinateLater(o.between(50*time.Millisecond, 500*time.Millisecond), func() { c.tell(what, serve) })
	})
}

// giveBack releases a lock.
func (c *client) giveBack(name, request string) {
	c.tell("release lock "+request, func() error {
		c.w.coordination.forget(c, request)
		return c.w.server.loop.ReleaseLocks(context.Background(), c.id, request, []string{name})
	})
}

// giveUp withdraws a call.
func (c *client) giveUp(request string) {
	c.tell("withdraw "+request, func() error {
		o := c.w.coordination
		o.forget(c, request)
		delete(o.doubtful, taker(c, request))
		for _, x := range o.items {
			if x.taker == taker(c, request) {
				x.taker = ""
			}
		}
		return c.w.server.loop.Withdraw(context.Background(), c.id, request)
	})
}

func taker(c *client, request string) string { return c.id.String() + " " + request }

// forget notes that the grants of a request are given back; of all requests if it is empty.
func (o *coordination) forget(c *client, request string) {
	// order-free: each is examined alone.
	for name, g := range o.held {
		if g.client == c && (request == "" || g.request == request) {
			delete(o.held, name)
		}
	}
}

// check checks an answer that leaves the scheduler.
func (o *coordination) check(c *client, call coord.Call, name string, answer coord.Answer) {
	w := o.w
	switch what := call.Ask.(type) {
	case coord.Acquire:
		if !answer.Met {
			return
		}
		h, is := o.held[name]
		switch again := is && h.client == c && h.request == call.ID; {
		case again && h.fence != answer.Fence:
			w.fail(nil, "client %s is told twice that it has lock %s, with the numbers %d and %d", c.id, name, h.fence, answer.Fence)
		case again:
			return
		case is && w.now.Sub(h.client.seen) < clientTTL:
			w.fail(nil, "client %s gets lock %s, which client %s has by %s", c.id, name, h.client.id, h.request)
		case answer.Fence <= o.fences[name]:
			w.fail(nil, "client %s gets lock %s with the number %d after %d", c.id, name, answer.Fence, o.fences[name])
		}
		o.held[name], o.fences[name] = grant{c, call.ID, answer.Fence}, answer.Fence
	case coord.PutInQueue:
		if answer.Met {
			o.items[number(what.Value)].acknowledged = true
		}
	case coord.TakeFromQueue:
		o.take(taker(c, call.ID), name, answer)
	case coord.ReadVariable:
		// A call that is repeated may have been answered before, with the value of that time.
		v, since := o.variables[name], o.reads[call.ID]
		switch {
		case !answer.Met && since == 0:
		case answer.Met && (v.tried[number(answer.Values[0])] || slices.Contains(v.values[max(since-1, 0):], number(answer.Values[0]))):
		default:
			w.fail(nil, "client %s read %v of variable %s, which has had the values %d, and %d of them before", c.id, answer.Values, name, v.values, since)
		}
	}
}

// take notes that a request took values from a queue.
func (o *coordination) take(taker, name string, answer coord.Answer) {
	delete(o.doubtful, taker)
	for _, v := range answer.Values {
		n := number(v)
		if n >= uint64(len(o.items)) || o.items[n].queue != name {
			o.w.fail(nil, "%s took %d from queue %s, which nobody put there", taker, n, name)
		}
		if x := o.items[n]; x.taker != "" && x.taker != taker {
			o.w.fail(nil, "%s took %d from queue %s, which %s took before", taker, n, name, x.taker)
		}
		o.items[n].taker = taker
	}
}

// checkQueues takes all that is left in the queues. Then each acknowledged value must have been
// taken. It returns false if it needs more time.
func (o *coordination) checkQueues() (empty bool) {
	empty = true
	for _, name := range []string{"shared/0", "shared/1", "own/0", "own/1"} {
		namespace, _, _ := strings.Cut(name, "/")
		place := schedapi.Place{Namespace: namespace}
		info, err := o.w.server.loop.Queue(context.Background(), place, name)
		o.w.server.must(err)
		if info.Size > 0 {
			o.ask(place, coord.Call{Ask: coord.TakeFromQueue{Name: name, Most: 10}}, func(answer coord.Answer, err error) {
				o.w.server.must(err)
				o.take("the end of the run", name, answer)
			})
			empty = false
			continue
		}
		missing, doubtful := 0, 0
		// order-free: a sum.
		for _, d := range o.doubtful {
			if d.queue == name {
				doubtful += d.most
			}
		}
		for _, x := range o.items {
			if x.queue == name && x.acknowledged && x.taker == "" {
				missing++
			}
		}
		if missing > doubtful {
			o.w.fail(nil, "%d values of queue %s are lost, at most %d by clients that have gone", missing, name, doubtful)
		}
	}
	return empty
}

func numbered(n uint64) coord.Value {
	return coord.Value{Data: binary.LittleEndian.AppendUint64(nil, n)}
}
func number(v coord.Value) uint64 { return binary.LittleEndian.Uint64(v.Data) }
