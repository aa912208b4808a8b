package coord

import (
	"container/heap"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// request is a call that waits, or whose answer is kept.
type request struct {
	sequence uint64
	client   *client // nil: a call without a lease
	id       string
	space    *space
	ask      Ask
	// cost is the memory that the request takes while it waits.
	cost uint64
	// value is that of a PutInQueue that waits.
	value *stored
	// ticket names the caller; 0: it has gone, and the request keeps its place for a while.
	ticket uint64
	keep   bool
	// met: the request got what it asked for, and answer says what. given says that a caller was
	// told. An answer that was not given is undone when its time is over. kept says that the answer
	// is one of client.answered.
	met, given, kept bool
	answer           Answer
	// durable means that the answer has a row. stale means that it is of an earlier start: another
	// call with the id gets a new answer.
	durable, stale bool
	// got are the values of the answer that are stored for it.
	got []*stored
	// grant is that of an Acquire that was met and not given.
	grant *grant
	// deadline is the time at which something happens to the request. timer is its place in the
	// heap of deadlines, counted from 1; 0: it has no deadline. gone: the request was dropped.
	deadline time.Time
	timer    int
	gone     bool
}

// Ask begins a call, or repeats one. Unless it is refused, an EffectAnswered follows.
func (m *Machine) Ask(now time.Time, call Call, out []Effect) ([]Effect, *Error) {
	m.begin(now, out)
	err := m.ask(&call)
	return m.end(), err
}

func (m *Machine) ask(call *Call) *Error {
	if call.ID != "" {
		if done, err := m.repeat(call); done || err != nil {
			return err
		}
	}
	if err := m.admit(call); err != nil {
		return err
	}
	m.sequence++
	r := &request{
		sequence: m.sequence, client: m.client(call.Client), id: call.ID, space: m.space(call.Namespace), ask: call.Ask,
		ticket: call.Ticket, keep: call.Keep && call.ID != "", cost: costOf(call.Ask),
	}
	m.use(r.space.name, requestBytes)
	m.listening[r.ticket] = r
	m.waits(r, true)
	if c := r.client; c != nil {
		if r.id != "" {
			c.requests[r.id] = r
		} else {
			c.anonymous = append(c.anonymous, r)
		}
	}
	if read, is := call.Ask.(ReadTopic); is && (call.Wait > 0 || read.Later) && r.client != nil {
		r.client.reads = m.reads(r.client.reads, r.space, read)
	}
	m.enter(r)
	m.await(r, call.Wait)
	return nil
}

// repeat continues a call that has the same id. It returns false if there is none.
func (m *Machine) repeat(call *Call) (bool, *Error) {
	c := m.clients[call.Client]
	if c == nil {
		return false, nil
	}
	conflict := func(other Ask) *Error {
		return &Error{Kind: ErrRequestConflict, Object: call.ID, Message: fmt.Sprintf(
			"%s: request_id %q belongs to another call of this client (%s): use another one", call.Ask, call.ID, other)}
	}
	r, g := c.requests[call.ID], c.granted(call.ID)
	if r != nil {
		if _, is := r.ask.(released); is || r.stale {
			if g == nil {
				m.forget(r)
			}
			r = nil
		}
	}
	if r == nil {
		if g == nil {
			return false, nil
		}
		if !g.ask.same(call.Ask) {
			return true, conflict(g.ask)
		}
		m.emit(Effect{Kind: EffectAnswered, Ticket: call.Ticket, Answer: Answer{Met: true, Names: slices.Clone(g.names), Fence: g.number}})
		return true, nil
	}
	if !r.ask.same(call.Ask) {
		return true, conflict(r.ask)
	}
	if r.ticket != 0 {
		m.tell(r, Answer{}) // the connection of the earlier caller has broken
	}
	if put, ok := call.Ask.(PutInQueue); ok && put.Value.Hold != 0 {
		m.emit(Effect{Kind: EffectUnheld, Hold: put.Value.Hold}) // the first call's value is the one
	}
	r.ticket, r.keep = call.Ticket, call.Keep
	m.listening[r.ticket] = r
	if r.met {
		m.give(r)
	} else {
		m.await(r, call.Wait)
	}
	return true, nil
}

// admit returns an error if a call cannot be accepted.
func (m *Machine) admit(call *Call) *Error {
	what := call.Ask.String()
	if c := m.clients[call.Client]; c != nil && c.waiting >= m.config.Waiting {
		return full(what, "client %d has %d calls that wait, and may have %d: wait for some of them first", uint64(call.Client), c.waiting, m.config.Waiting)
	}
	s := m.space(call.Namespace)
	err := m.admitTo(s, call.Ask, what)
	if err == nil && call.Client == 0 && call.Wait > 0 {
		err = m.admitUnleased(s, what, costOf(call.Ask))
	}
	m.tidySpace(s)
	return err
}

// admitUnleased returns an error if a call that waits, and has no client, has no room.
func (m *Machine) admitUnleased(s *space, what string, cost uint64) *Error {
	const remedy = "open a client, and name it in the call"
	if s.unleased >= m.config.Unleased || s.unleasedBytes+cost > m.config.UnleasedBytes {
		return full(what, "in namespace %q, %d calls without a client wait and take %d bytes, and they may be %d and take %d: %s",
			s.name, s.unleased, s.unleasedBytes, m.config.Unleased, m.config.UnleasedBytes, remedy)
	}
	if most := 8 * m.config.UnleasedBytes; m.unleasedBytes+cost > most {
		return full(what, "calls without a client wait and take %d bytes in all namespaces, and may take %d: %s", m.unleasedBytes, most, remedy)
	}
	return nil
}

// costOf is the memory that a call takes while it waits.
func costOf(ask Ask) uint64 {
	if put, ok := ask.(PutInQueue); ok {
		return requestBytes + put.Value.size()
	}
	return requestBytes
}

// waits counts a request that begins to wait, or that has waited.
func (m *Machine) waits(r *request, begins bool) {
	calls, cost := 1, r.cost
	if !begins {
		calls, cost = -1, -cost
	}
	if r.client != nil {
		r.client.waiting += calls
		return
	}
	r.space.unleased += calls
	r.space.unleasedBytes += cost
	m.unleasedBytes += cost
}

func (m *Machine) admitTo(s *space, ask Ask, what string) *Error {
	var names []string
	bytes := uint64(requestBytes)
	missing := func(known bool, name string) {
		if !known {
			names = append(names, name)
		}
	}
	switch ask := ask.(type) {
	case Acquire:
		if err := s.checkLimits(ask); err != nil {
			return err
		}
		for _, name := range ask.Names {
			missing(s.semaphores[name] != nil, name)
		}
		bytes += uint64(len(ask.Names)) * 64
	case ReadVariable:
		missing(s.variables[ask.Name] != nil, ask.Name)
	case AwaitEvent:
		missing(s.events[ask.Name] != nil, ask.Name)
	case PutInQueue:
		missing(s.queues[ask.Name] != nil, ask.Name)
		bytes += ask.Value.size()
	case TakeFromQueue:
		missing(s.queues[ask.Name] != nil, ask.Name)
	case ReadTopic:
		missing(s.topics[ask.Name] != nil, ask.Name)
	}
	return m.roomFor(s, what, bytes, names...)
}

// enter puts a request into the lines of what it asks for.
func (m *Machine) enter(r *request) {
	switch ask := r.ask.(type) {
	case Acquire:
		m.enterSemaphores(r, ask)
	case ReadVariable:
		m.enterVariable(r, ask)
	case AwaitEvent:
		m.enterEvent(r, ask)
	case PutInQueue:
		m.enterPut(r, ask)
	case TakeFromQueue:
		m.enterTake(r, ask)
	case ReadTopic:
		m.enterTopic(r, ask)
	}
}

// leave takes a request that waits out of the lines.
func (m *Machine) leave(r *request) {
	switch ask := r.ask.(type) {
	case Acquire:
		m.leaveSemaphores(r, ask)
	case ReadVariable:
		v := r.space.variables[ask.Name]
		v.waiting = without(v.waiting, r)
		m.tidyVariable(r.space, v)
	case AwaitEvent:
		e := r.space.events[ask.Name]
		e.waiting = without(e.waiting, r)
		m.tidyEvent(r.space, e)
	case PutInQueue:
		q := r.space.queues[ask.Name]
		q.puts = without(q.puts, r)
		m.unstore(r.value)
		q.space.tidyQueue(m, q)
	case TakeFromQueue:
		q := r.space.queues[ask.Name]
		q.takes = without(q.takes, r)
		q.space.tidyQueue(m, q)
	case ReadTopic:
		t := r.space.topics[ask.Name]
		t.waiting = without(t.waiting, r)
		m.tidyTopic(r.space, t)
	}
}

// without removes an element from a list.
func without[T comparable](line []T, r T) []T {
	if i := slices.Index(line, r); i >= 0 {
		return slices.Delete(line, i, i+1)
	}
	return line
}

// await sets the end of a wait. A wait that is over already ends at once.
func (m *Machine) await(r *request, wait time.Duration) {
	if r.met || r.gone {
		return
	}
	if wait <= 0 {
		m.overdue(r)
		return
	}
	m.arm(r, m.now.Add(wait))
}

// overdue ends the wait of a request with a caller. With keep it keeps its place.
func (m *Machine) overdue(r *request) {
	m.tell(r, m.unmet(r))
	if r.keep {
		m.arm(r, m.now.Add(placeKept))
	} else {
		m.drop(r)
	}
}

// unmet is the answer to a call whose wait is over.
func (m *Machine) unmet(r *request) Answer {
	if ask, ok := r.ask.(ReadTopic); ok {
		return Answer{Number: r.space.topics[ask.Name].number}
	}
	return Answer{}
}

// meet gives a request what it asked for. REQUIRES: it is in no line any more.
func (m *Machine) meet(r *request, answer Answer, got ...*stored) {
	r.met, r.answer, r.got = true, answer, got
	m.waits(r, false)
	if r.ticket != 0 {
		m.give(r)
	} else { // The place's deadline is now that of the answer.
		m.putAnswer(r)
	}
}

// give tells the caller the answer. The answer is kept if it must not be lost.
func (m *Machine) give(r *request) {
	m.tell(r, r.answer)
	r.given = true
	if g := r.grant; g != nil && !g.given {
		g.given = true
		if len(g.names) > 0 {
			m.put(g.row())
		}
	}
	_, locks := r.ask.(Acquire)
	_, put := r.ask.(PutInQueue)
	// A grant is itself the memory of an Acquire. A read of plain values may be repeated.
	if r.client == nil || r.id == "" || locks || len(r.got) == 0 && !put {
		m.forget(r)
		return
	}
	m.keepAnswer(r)
}

// keepAnswer keeps an answer that was given, or keeps it longer.
func (m *Machine) keepAnswer(r *request) {
	m.arm(r, m.now.Add(answerKept))
	if r.kept {
		return
	}
	r.given, r.kept = true, true
	c := r.client
	c.answered = append(c.answered, r)
	c.keptBytes += r.bytes()
	m.putAnswer(r)
	for len(c.answered) > answersKept || c.keptBytes > answerBytes && len(c.answered) > 1 {
		m.forget(c.answered[0])
	}
}

// bytes is the size of the values of an answer.
func (r *request) bytes() (n uint64) {
	for _, v := range r.got {
		n += v.size()
	}
	return n
}

// tell answers the caller of a request.
func (m *Machine) tell(r *request, answer Answer) {
	m.emit(Effect{Kind: EffectAnswered, Ticket: r.ticket, Answer: answer})
	delete(m.listening, r.ticket)
	r.ticket = 0
}

// refuse ends the call of a request with an error.
func (m *Machine) refuse(r *request, err *Error) {
	m.emit(Effect{Kind: EffectAnswered, Ticket: r.ticket, Err: err})
	delete(m.listening, r.ticket)
	r.ticket = 0
}

// drop ends a request in any state: one that waits leaves the lines, an answer that was not given
// is undone, one that was given is forgotten.
func (m *Machine) drop(r *request) {
	switch {
	case r.gone:
	case !r.met:
		m.waits(r, false)
		s := r.space
		m.forget(r)
		m.leave(r)
		m.tidySpace(s)
	case !r.given:
		m.undo(r)
		m.forget(r)
	default:
		m.forget(r)
	}
}

// undo takes back what a request got.
func (m *Machine) undo(r *request) {
	switch r.ask.(type) {
	case Acquire:
		if len(r.grant.names) > 0 { // they may have been closed meanwhile
			m.release(r.grant, r.grant.names)
		}
	case TakeFromQueue:
		m.putBack(r)
	}
}

// forget removes the record of a request.
func (m *Machine) forget(r *request) {
	r.gone = true
	m.disarm(r)
	m.giveBack(r.space.name, requestBytes)
	if r.durable {
		r.durable = false
		m.gone(AnswerRow{Client: r.client.id, ID: r.id})
	}
	if r.ticket != 0 {
		delete(m.listening, r.ticket)
		r.ticket = 0
	}
	if c := r.client; c != nil {
		if r.id != "" {
			delete(c.requests, r.id)
		} else {
			c.anonymous = without(c.anonymous, r)
		}
		if _, is := r.ask.(released); is {
			c.released = without(c.released, r)
		}
		if r.kept {
			c.answered = without(c.answered, r)
			c.keptBytes -= r.bytes()
		}
		m.tidyClient(c)
	}
	for _, v := range r.got {
		m.unstore(v)
	}
	r.got = nil
}

// expire ends a time of a request.
func (m *Machine) expire(r *request) {
	if !r.met && r.ticket != 0 {
		m.overdue(r)
	} else {
		m.drop(r)
	}
}

// HungUp says that the caller of a call has gone. A call with an id keeps its place for a while.
func (m *Machine) HungUp(now time.Time, ticket uint64, out []Effect) []Effect {
	m.begin(now, out)
	if r := m.listening[ticket]; r != nil {
		delete(m.listening, ticket)
		r.ticket = 0
		if r.id == "" {
			m.drop(r)
		} else {
			m.arm(r, now.Add(placeKept))
		}
	}
	return m.end()
}

// Withdraw gives up a call that waits, and undoes one that was granted.
func (m *Machine) Withdraw(now time.Time, id ids.ClientID, request string, out []Effect) []Effect {
	m.begin(now, out)
	c := m.clients[id]
	if c == nil {
		return m.end()
	}
	r := c.requests[request]
	if r != nil {
		if _, is := r.ask.(released); is {
			r = nil
		}
	}
	if r != nil {
		if r.ticket != 0 {
			m.tell(r, Answer{})
		}
		if r.given {
			m.undo(r)
			m.forget(r)
		} else {
			m.drop(r)
		}
	} else if g := c.granted(request); g != nil {
		m.release(g, g.names)
	}
	return m.end()
}

// Acknowledge forgets the answer to a call: the client has it, and holds the results in it.
func (m *Machine) Acknowledge(now time.Time, id ids.ClientID, request string, out []Effect) []Effect {
	m.begin(now, out)
	if c := m.clients[id]; c != nil {
		if r := c.requests[request]; r != nil && r.given {
			m.forget(r)
		}
	}
	return m.end()
}

// arm sets the time at which something happens to a request.
func (m *Machine) arm(r *request, at time.Time) {
	r.deadline = at
	if r.timer > 0 {
		heap.Fix(&m.timers, r.timer-1)
	} else {
		heap.Push(&m.timers, r)
	}
}

func (m *Machine) disarm(r *request) {
	if r.timer > 0 {
		heap.Remove(&m.timers, r.timer-1)
	}
}

// timers are the requests with a deadline, as a heap.
type timers []*request

func (t timers) Len() int { return len(t) }
func (t timers) Less(i, j int) bool {
	if t[i].deadline.Equal(t[j].deadline) {
		return t[i].sequence < t[j].sequence
	}
	return t[i].deadline.Before(t[j].deadline)
}

func (t timers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].timer, t[j].timer = i+1, j+1
}

// Push and Pop are those of heap.Interface.
func (t *timers) Push(x any) {
	r := x.(*request)
	*t = append(*t, r)
	r.timer = len(*t)
}

// Pop removes the last element.
func (t *timers) Pop() any {
	old := *t
	last := old[len(old)-1]
	old[len(old)-1] = nil
	last.timer = 0
	*t = old[:len(old)-1]
	return last
}
