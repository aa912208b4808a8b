package coord

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// queue is a line of values. It exists while it has values, waiting calls, or clients that have
// opened it.
type queue struct {
	name  string
	space *space
	// maxSize bounds the values; 0: it does not.
	maxSize uint32
	values  []*stored
	// puts and takes are the calls that wait, in order.
	puts, takes []*request
	// openers is the number of clients that have opened it. gone: it was closed or dropped.
	openers int
	gone    bool
}

func (a PutInQueue) same(other Ask) bool {
	o, ok := other.(PutInQueue)
	return ok && a.Name == o.Name
}

func (a TakeFromQueue) same(other Ask) bool {
	o, ok := other.(TakeFromQueue)
	return ok && a.Name == o.Name
}

// queue returns a queue, and makes it if there is none.
func (m *Machine) queue(s *space, name string, maxSize uint32) *queue {
	q := s.queues[name]
	if q == nil {
		q = &queue{name: name, space: s}
		s.queues[name] = q
		m.addName(s, name)
		q.maxSize = maxSize
		m.put(q.row())
	}
	if q.maxSize == 0 && maxSize > 0 {
		q.maxSize = maxSize
		m.put(q.row())
	}
	return q
}

// open notes that a client uses a queue.
func (m *Machine) open(q *queue, c *client) {
	if c != nil && !slices.Contains(c.queues, q) {
		c.queues = append(c.queues, q)
		q.openers++
		m.put(OpenerRow{c.id, q.space.name, q.name})
	}
}

// leaveQueue notes that a client does not use a queue any more, which it has opened.
func (m *Machine) leaveQueue(c *client, q *queue) {
	c.queues = without(c.queues, q)
	q.openers--
	m.gone(OpenerRow{c.id, q.space.name, q.name})
}

// append adds a value to the end of a queue, remove takes the first ones out.
func (m *Machine) append(q *queue, v *stored) {
	q.values = append(q.values, v)
	m.put(ItemRow{q.space.name, q.name, m.keep(v)})
}

func (m *Machine) remove(q *queue, n int) []*stored {
	removed := slices.Clone(q.values[:n])
	clear(q.values[:n])
	q.values = q.values[n:]
	for _, v := range removed {
		m.gone(ItemRow{q.space.name, q.name, v.number})
	}
	return removed
}

// tidyQueue drops a queue that nobody uses.
func (s *space) tidyQueue(m *Machine, q *queue) {
	if !q.gone && len(q.values)+len(q.puts)+len(q.takes)+q.openers == 0 {
		q.gone = true
		delete(s.queues, q.name)
		m.gone(QueueRow{Namespace: s.name, Name: q.name})
		m.dropName(s, q.name)
	}
}

func (m *Machine) enterPut(r *request, ask PutInQueue) {
	q := m.queue(r.space, ask.Name, ask.MaxSize)
	m.open(q, r.client)
	r.value = m.store(r.space.name, ask.Value)
	if ask.Value.Hold != 0 {
		m.keep(r.value)
	}
	// The request stands for the name from here on; its value is in r.value.
	r.ask = PutInQueue{Name: ask.Name}
	q.puts = append(q.puts, r)
	m.serveQueue(q)
}

func (m *Machine) enterTake(r *request, ask TakeFromQueue) {
	q := m.queue(r.space, ask.Name, 0)
	m.open(q, r.client)
	q.takes = append(q.takes, r)
	m.serveQueue(q)
}

// serveQueue moves values from the calls that put to the queue, and from there to those that take.
func (m *Machine) serveQueue(q *queue) {
	for {
		switch {
		case len(q.puts) > 0 && (q.maxSize == 0 || len(q.values) < int(q.maxSize)):
			r := q.puts[0]
			q.puts = q.puts[1:]
			m.append(q, r.value)
			r.value = nil
			m.meet(r, Answer{Met: true})
		case len(q.takes) > 0 && len(q.values) > 0:
			r := q.takes[0]
			q.takes = q.takes[1:]
			m.take(q, r)
		default:
			q.space.tidyQueue(m, q)
			return
		}
	}
}

// take gives values to a request.
func (m *Machine) take(q *queue, r *request) {
	most, bytes := r.ask.(TakeFromQueue).Most, uint64(0)
	n := 0
	for n < min(most, len(q.values)) && (n == 0 || bytes+q.values[n].size() <= batchBytes) {
		bytes += q.values[n].size()
		n++
	}
	got := m.remove(q, n)
	answer := Answer{Met: true, Values: make([]Value, n)}
	for i, v := range got {
		answer.Values[i] = v.Value
	}
	m.meet(r, answer, got...)
}

// putBack returns the values of a request to their places in the queue, also above its size. If the
// queue was closed meanwhile, they are dropped.
func (m *Machine) putBack(r *request) {
	q := r.space.queues[r.ask.(TakeFromQueue).Name]
	if q == nil {
		return
	}
	for _, v := range r.got {
		v.places++ // forget takes them out of the request
		m.put(ItemRow{q.space.name, q.name, v.number})
	}
	q.values = slices.Concat(r.got, q.values)
	slices.SortFunc(q.values, func(a, b *stored) int { return cmp.Compare(a.number, b.number) })
	m.serveQueue(q)
}

// OpenQueue creates a queue, or joins it.
func (m *Machine) OpenQueue(now time.Time, id ids.ClientID, namespace, name string, maxSize uint32, out []Effect) ([]Effect, *Error) {
	m.begin(now, out)
	s := m.space(namespace)
	if s.queues[name] == nil {
		if err := m.roomFor(s, fmt.Sprintf("queue %q", name), 0, name); err != nil {
			m.tidySpace(s)
			return m.end(), err
		}
	}
	q := m.queue(s, name, maxSize)
	m.open(q, m.client(id))
	m.serveQueue(q)
	return m.end(), nil
}

// CloseQueue drops a queue with its values, and ends the waits for it. It returns the number of
// values.
func (m *Machine) CloseQueue(now time.Time, namespace, name string, out []Effect) (int, []Effect) {
	m.begin(now, out)
	s := m.spaces[namespace]
	if s == nil || s.queues[name] == nil {
		return 0, m.end()
	}
	q := s.queues[name]
	closed := &Error{Kind: ErrClosed, Object: name, Message: fmt.Sprintf("queue %q was closed while the call waited: open it again if it is still in use", name)}
	dropped := m.remove(q, len(q.values))
	for _, v := range dropped {
		m.unstore(v)
	}
	for _, r := range slices.Concat(q.puts, q.takes) {
		if r.ticket != 0 {
			m.refuse(r, closed)
		}
		m.drop(r)
	}
	for _, id := range m.Clients() {
		if c := m.clients[id]; slices.Contains(c.queues, q) {
			m.leaveQueue(c, q)
			m.tidyClient(c)
		}
	}
	s.tidyQueue(m, q)
	return len(dropped), m.end()
}

// LeaveQueue ends a client's use of a queue. After the last client, it is CloseQueue.
func (m *Machine) LeaveQueue(now time.Time, id ids.ClientID, namespace, name string, out []Effect) (int, []Effect) {
	m.begin(now, out)
	s := m.spaces[namespace]
	if s == nil || s.queues[name] == nil {
		return 0, m.end()
	}
	q := s.queues[name]
	if c := m.clients[id]; c != nil && slices.Contains(c.queues, q) && q.openers > 1 {
		m.leaveQueue(c, q)
		m.tidyClient(c)
	}
	if others := q.openers - openedBy(m.clients[id], q); others > 0 {
		return 0, m.end()
	}
	return m.CloseQueue(now, namespace, name, m.end())
}

// openedBy is 1 if a client has opened a queue.
func openedBy(c *client, q *queue) int {
	if c != nil && slices.Contains(c.queues, q) {
		return 1
	}
	return 0
}

// QueueInfo describes a queue.
type QueueInfo struct {
	Size        int
	MaxSize     uint32
	Puts, Takes int
}

// Queue describes a queue.
func (m *Machine) Queue(namespace, name string) (info QueueInfo) {
	if s := m.spaces[namespace]; s != nil {
		if q := s.queues[name]; q != nil {
			info = QueueInfo{Size: len(q.values), MaxSize: q.maxSize, Puts: len(q.puts), Takes: len(q.takes)}
		}
	}
	return info
}
