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
	"github.com/millrace/millrace/test/model"
)

// coordination has the calls about the locks, queues and variables that the clients use. When the
// run is over, their history is compared with the model.
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

	history model.History
	// values counts the values that were put or set: each is another one.
	values uint64
}

const (
	queueSize = 3
	// semaphoreLimit is the number of holders of locks whose names end in 1.
	semaphoreLimit = 2
)

// ask is a call that waits in the scheduler.
type ask struct {
	number uint64
	cancel context.CancelFunc
	answer coord.Answer
	err    error
	then   func(coord.Answer, error)
}

// request is a call of a client that may wait. The client repeats it until it is answered, or once
// says that it is made once.
type request struct {
	c    *client
	call coord.Call
	name string
	once bool
	op   *model.Op
	// splits counts the tries that the scheduler has undone.
	splits int
	// met follows if the call got what it asked for.
	met func()
}

func newCoordination(w *world) *coordination {
	return &coordination{w: w, rng: rand.New(rand.NewPCG(w.options.seed, 1)), asks: map[uint64]*ask{}}
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

// troubled says that nothing can become durable at present. Reads and ends are answered all the
// same then, with what a crash may undo.
func (s *server) troubled() bool {
	j := s.loop.Journal()
	return j != nil && j.Trouble != ""
}

func limitOf(name string) uint32 {
	if strings.HasSuffix(name, "1") {
		return semaphoreLimit
	}
	return 1
}

func (c *client) modelCall(kind model.Kind, name, request string) model.Call {
	return model.Call{Kind: kind, Client: c.id.String(), Name: name, Request: request}
}

// coordinate does one thing with a lock, a queue or a variable.
func (c *client) coordinate() {
	o := c.w.coordination
	o.requests++
	name := o.names(c.namespace)[o.rng.IntN(2)]
	r := &request{c: c, name: name, once: o.chance(0.2), met: func() {}}
	id := fmt.Sprintf("q%d", o.requests)
	if !r.once {
		r.call = coord.Call{ID: id, Wait: o.between(0, time.Second), Keep: o.chance(0.5)}
	}
	switch o.rng.IntN(8) {
	case 0, 1:
		r.call.ID = id // Without it, nobody knows which of several holders a release is about.
		r.call.Ask = coord.Acquire{Names: []string{name}, Limit: limitOf(name), Needed: 1}
		r.met = func() {
			c.coordinateLater(o.between(0, time.Second), func() { c.giveBack(r) })
		}
	case 2, 3:
		o.values++
		r.call.Ask = coord.PutInQueue{Name: name, MaxSize: queueSize, Value: numbered(o.values)}
	case 4:
		r.call.Ask = coord.TakeFromQueue{Name: name, Most: 1 + o.rng.IntN(2)}
	case 5:
		r.call.Ask = coord.ReadVariable{Name: name}
	case 6:
		c.change(name)
		return
	case 7:
		c.inspect(name)
		return
	}
	r.op = o.history.Begin(r.modelled())
	if r.op.Call.Kind == model.Take {
		c.taking = append(c.taking, r)
	}
	r.repeat(o.between(50*time.Microsecond, time.Millisecond))
}

// modelled is the call as the model has it.
func (r *request) modelled() model.Call {
	name := r.call.ID
	if name == "" {
		name = fmt.Sprint("n", r.c.w.coordination.requests)
	}
	call := r.c.modelCall(0, r.name, fmt.Sprintf("%s.%d", name, r.splits))
	switch ask := r.call.Ask.(type) {
	case coord.Acquire:
		call.Kind, call.Limit = model.Acquire, int(ask.Limit)
	case coord.PutInQueue:
		call.Kind, call.Limit, call.Value = model.Put, int(ask.MaxSize), valueText(ask.Value)
	case coord.TakeFromQueue:
		call.Kind, call.Most = model.Take, ask.Most
	case coord.ReadVariable:
		call.Kind = model.Get
	}
	return call
}

func valueText(v coord.Value) string { return fmt.Sprint(binary.LittleEndian.Uint64(v.Data)) }

// coordinateLater is after, and counts as a call in progress.
func (c *client) coordinateLater(d time.Duration, do func()) {
	c.pending++
	c.after(d, func() {
		c.pending--
		do()
	})
}

func (r *request) repeat(d time.Duration) { r.c.coordinateLater(d, r.try) }

// again tries once more, unless the call is made once. Then nobody knows what has become of it.
func (r *request) again() {
	if !r.once {
		r.repeat(r.c.w.coordination.between(50*time.Millisecond, 500*time.Millisecond))
	}
}

func (r *request) try() {
	c, w, o := r.c, r.c.w, r.c.w.coordination
	if !w.server.up || o.fault(2*w.plan.drop) {
		r.again()
		return
	}
	w.log("client %s: %s %s", c.id, r.op.Call.Request, r.call.Ask)
	troubled := w.server.troubled()
	c.pending++
	a := o.ask(schedapi.Place{Client: c.id}, r.call, func(answer coord.Answer, err error) {
		c.pending--
		w.log("client %s: %s: %v %v", c.id, r.op.Call.Request, answer.Met, err)
		refused := (*coord.Error)(nil)
		switch {
		case c.gone:
		case unwritten(err):
			r.refused(troubled)
		case errors.Is(err, context.Canceled), err == nil && o.fault(2*w.plan.drop):
			r.again()
		case errors.As(err, &refused) && refused.Kind == coord.ErrClientGone && (c.over || w.now.Sub(c.renewed) > clientTTL-time.Second):
			c.crash()
		case err != nil:
			c.checkError("ask", err)
		case answer.Met:
			r.answered(answer)
			r.met()
		case !r.call.Keep || r.op.Call.Kind == model.Get:
			r.answered(answer)
		case o.chance(0.3):
			r.again()
		default:
			r.giveUp()
		}
	})
	if o.fault(0.1) {
		w.after(o.between(0, time.Second), a.cancel) // the connection breaks
	}
	c.asks = append(c.asks, a)
}

// refused follows an answer that the scheduler could not write down. It undoes what was granted,
// but not a put, unless the call was refused before it could do anything.
func (r *request) refused(atOnce bool) {
	kind := r.op.Call.Kind
	if !atOnce && r.call.ID != "" && (kind == model.Acquire || kind == model.Take) {
		o := r.c.w.coordination
		o.history.Begin(r.c.modelCall(model.Withdraw, r.name, r.op.Call.Request))
		r.splits++
		r.op = o.history.Begin(r.modelled())
	}
	r.again()
}

// answered notes the answer to the call.
func (r *request) answered(answer coord.Answer) {
	a := model.Answer{Met: answer.Met, Fence: answer.Fence}
	for _, v := range answer.Values {
		a.Values = append(a.Values, valueText(v))
	}
	if r.op.Call.Kind == model.Get && r.c.w.server.troubled() {
		r.op.Drop()
		return
	}
	r.op.End(a)
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

// tellEnd makes a call that ends something. In trouble it is answered, and a crash may undo it.
func (c *client) tellEnd(what string, call model.Call, serve func() error) {
	var op *model.Op
	c.tell(what, func() error {
		if op == nil {
			op = c.w.coordination.history.Begin(call)
		}
		err := serve()
		if err == nil && !c.w.server.troubled() {
			op.End(model.Answer{Met: true})
		}
		return err
	})
}

// giveBack releases a lock.
func (c *client) giveBack(r *request) {
	c.tellEnd("release lock "+r.op.Call.Request, c.modelCall(model.Release, r.name, r.op.Call.Request), func() error {
		return c.w.server.loop.ReleaseLocks(context.Background(), c.id, r.call.ID, []string{r.name})
	})
}

// giveUp withdraws a call.
func (r *request) giveUp() {
	c := r.c
	c.tellEnd("withdraw "+r.op.Call.Request, c.modelCall(model.Withdraw, r.name, r.op.Call.Request), func() error {
		return c.w.server.loop.Withdraw(context.Background(), c.id, r.call.ID)
	})
}

// change gives a variable a value, or deletes it. Each try is a call of its own.
func (c *client) change(name string) {
	w, o := c.w, c.w.coordination
	place := schedapi.Place{Client: c.id}
	if o.chance(0.2) {
		c.tellEnd("delete variable "+name, c.modelCall(model.Delete, name, ""), func() error {
			return w.server.loop.DeleteVariable(context.Background(), place, name)
		})
		return
	}
	o.values++
	value := numbered(o.values)
	c.tell("set variable "+name, func() error {
		troubled := w.server.troubled()
		call := c.modelCall(model.Set, name, "")
		call.Value = valueText(value)
		op := o.history.Begin(call)
		err := w.server.loop.SetVariable(context.Background(), place, name, value)
		switch {
		case err == nil:
			op.End(model.Answer{Met: true})
		case troubled || !unwritten(err):
			op.Drop()
		}
		return err
	})
}

// inspect reads the state of a lock and of a queue.
func (c *client) inspect(name string) {
	w, o := c.w, c.w.coordination
	place := schedapi.Place{Client: c.id}
	c.tell("inspect "+name, func() error {
		held := o.history.Begin(c.modelCall(model.Holders, name, ""))
		lock, err := w.server.loop.Semaphore(context.Background(), place, name)
		if err == nil && !w.server.troubled() {
			held.End(model.Answer{Size: len(lock.Holders)})
		}
		size := o.history.Begin(c.modelCall(model.Size, name, ""))
		queue, failed := w.server.loop.Queue(context.Background(), place, name)
		if failed == nil && !w.server.troubled() {
			size.End(model.Answer{Size: queue.Size})
		}
		return errors.Join(err, failed)
	})
}

// leaseMayEnd notes that a lease may end from now on. Answers that its client did not get are
// undone then.
func (o *coordination) leaseMayEnd(c *client) {
	o.history.Begin(c.modelCall(model.LeaseEnds, "", ""))
	for _, r := range c.taking {
		o.history.Begin(c.modelCall(model.Withdraw, r.name, r.op.Call.Request))
	}
}

// checkQueues takes all that is left in the queues. It returns false if it needs more time.
func (o *coordination) checkQueues() (empty bool) {
	empty = true
	for _, name := range o.names("shared", "own") {
		namespace, _, _ := strings.Cut(name, "/")
		place := schedapi.Place{Namespace: namespace}
		info, err := o.w.server.loop.Queue(context.Background(), place, name)
		o.w.server.must(err)
		o.history.Note(model.Call{Kind: model.Size, Client: "the end", Name: name}, model.Answer{Size: info.Size})
		if info.Size > 0 {
			op := o.history.Begin(model.Call{Kind: model.Take, Client: "the end", Name: name, Most: 10})
			o.ask(place, coord.Call{Ask: coord.TakeFromQueue{Name: name, Most: 10}}, func(answer coord.Answer, err error) {
				o.w.server.must(err)
				a := model.Answer{Met: answer.Met}
				for _, v := range answer.Values {
					a.Values = append(a.Values, valueText(v))
				}
				op.End(a)
			})
			empty = false
		}
	}
	return empty
}

// names are those of the locks, queues and variables of namespaces.
func (o *coordination) names(namespaces ...string) (names []string) {
	for _, n := range namespaces {
		names = append(names, n+"/0", n+"/1")
	}
	return names
}

// checkLocks notes who holds locks after all clients have gone.
func (o *coordination) checkLocks() {
	for _, name := range o.names("shared", "own") {
		namespace, _, _ := strings.Cut(name, "/")
		info, err := o.w.server.loop.Semaphore(context.Background(), schedapi.Place{Namespace: namespace}, name)
		o.w.server.must(err)
		if len(info.Holders) > 0 {
			o.w.fail(nil, "after all clients have gone, %v hold lock %s", info.Holders, name)
		}
	}
}

func numbered(n uint64) coord.Value {
	return coord.Value{Data: binary.LittleEndian.AppendUint64(nil, n)}
}
