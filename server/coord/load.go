package coord

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// A restart gives a new machine the changes of all steps of the one before, in their order, or rows
// of a snapshot and the changes since its beginning. Load only keeps rows: nothing is decided, and
// rows may come again. Loaded builds the state.

// Load keeps a change of an earlier machine. REQUIRES: the machine is new, and Loaded follows.
func (m *Machine) Load(c Change) { m.table.apply(c) }

// Loaded builds the state of the rows that were loaded. Clients get as much time as for a new
// answer to repeat a call. Messages of new topics and grants are numbered after the given numbers.
// Values that only waiting calls had are gone.
func (m *Machine) Loaded(now time.Time, messages, grants uint64, out []Effect) []Effect {
	m.begin(now, out)
	m.config.Messages, m.config.Grants = messages, grants
	m.grants = max(m.grants, grants)
	rows := make([]Row, 0, len(m.table.at))
	for _, e := range m.table.entries {
		if e.row != nil {
			rows = append(rows, e.row)
		}
	}
	slices.SortStableFunc(rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.key().kind, b.key().kind), cmp.Compare(orderOf(a), orderOf(b)))
	})
	m.loading = true
	values := map[uint64]*stored{}
	var unusable []Row
	for _, row := range rows {
		if !m.build(row, values) {
			unusable = append(unusable, row)
		}
	}
	m.loading = false
	for _, row := range unusable {
		m.gone(row)
	}
	for _, row := range rows {
		switch row := row.(type) {
		case ValueRow:
			if v := values[row.Number]; v.places == 0 {
				v.places = 1
				m.unstore(v)
			}
		case QueueRow:
			if s := m.spaces[row.Namespace]; s != nil && s.queues[row.Name] != nil {
				s.tidyQueue(m, s.queues[row.Name])
			}
		case TopicRow:
			if s := m.spaces[row.Namespace]; s.topics[row.Name].number == row.Base {
				m.gone(row)
				m.tidyTopic(s, s.topics[row.Name])
			}
		}
	}
	// order-free: each is looked at alone.
	for _, s := range m.spaces {
		m.tidySpace(s)
	}
	return m.end()
}

// Clients returns the clients that have something, in order.
func (m *Machine) Clients() []ids.ClientID {
	list := make([]ids.ClientID, 0, len(m.clients))
	// order-free: sorted below.
	for id := range m.clients {
		list = append(list, id)
	}
	slices.Sort(list)
	return list
}

// orderOf is the order among rows of one kind, if it matters.
func orderOf(r Row) uint64 {
	switch r := r.(type) {
	case ItemRow:
		return r.Value
	case MessageRow:
		return r.Number
	case GrantRow:
		return r.Number
	case MetadataRow:
		return r.Number
	}
	return 0
}

// build adds what a row says to the state. It returns false if that needs a row that is not there.
func (m *Machine) build(row Row, values map[uint64]*stored) bool {
	// place puts a value into a place.
	place := func(number uint64) *stored {
		v := values[number]
		if v != nil {
			v.places++
		}
		return v
	}
	switch r := row.(type) {
	case ValueRow:
		v := m.store(r.Namespace, r.Value)
		v.number, v.places, v.durable = r.Number, 0, true
		values[r.Number] = v
		m.values = max(m.values, r.Number)
	case VariableRow:
		v := place(r.Value)
		if v == nil {
			return false
		}
		m.variable(m.space(r.Namespace), r.Name).value = v
	case EventRow:
		m.event(m.space(r.Namespace), r.Name).set = true
	case QueueRow:
		m.queue(m.space(r.Namespace), r.Name, r.MaxSize)
	case OpenerRow:
		q := m.space(r.Namespace).queues[r.Name]
		if q == nil {
			return false
		}
		m.open(q, m.client(r.Client))
	case ItemRow:
		q := m.space(r.Namespace).queues[r.Name]
		if q == nil {
			return false
		}
		v := place(r.Value)
		if v == nil {
			return false
		}
		q.values = append(q.values, v)
	case TopicRow:
		t := m.topic(m.space(r.Namespace), r.Name)
		t.base, t.number = r.Base, r.Base
	case MessageRow:
		t := m.space(r.Namespace).topics[r.Name]
		if t == nil || len(t.messages) > 0 && t.number+1 != r.Number {
			return false
		}
		v := place(r.Value)
		if v == nil {
			return false
		}
		t.number = r.Number
		t.messages = append(t.messages, &message{r.Number, r.At, v})
		t.bytes += v.size()
	case GrantRow:
		return m.buildGrant(r)
	case AnswerRow:
		return m.buildAnswer(r, values)
	case MetadataRow:
		return m.buildNode(r)
	default:
		panic(fmt.Sprintf("coord: a %T is no row", row))
	}
	return true
}

func (m *Machine) buildGrant(r GrantRow) bool {
	m.grants = max(m.grants, r.Number)
	s := m.space(r.Namespace)
	if len(r.Names) == 0 || s.checkLimits(Acquire{Names: r.Names, Limit: r.Ask.Limit}) != nil {
		return false
	}
	c := m.client(r.Client)
	g := &grant{number: r.Number, client: c, id: r.ID, space: s, ask: r.Ask, names: r.Names, given: r.Given}
	for _, name := range r.Names {
		sem := m.semaphore(s, name, r.Ask.Limit)
		sem.holders = append(sem.holders, g)
	}
	c.grants = append(c.grants, g)
	m.use(s.name, requestBytes+uint64(len(r.Names))*64)
	if !r.Given {
		answer := m.newAnswer(c, r.ID, s, r.Ask)
		answer.grant, answer.answer = g, Answer{Met: true, Names: slices.Clone(r.Names), Fence: g.number}
		m.arm(answer, m.now.Add(placeKept))
	}
	return true
}

func (m *Machine) buildAnswer(r AnswerRow, values map[uint64]*stored) bool {
	var got []*stored
	for _, number := range r.Values {
		v := values[number]
		if v == nil {
			return false
		}
		got = append(got, v)
	}
	var ask Ask
	switch r.Kind {
	case AnswerPut:
		ask = PutInQueue{Name: r.Name}
	case AnswerTaken:
		ask = TakeFromQueue{Name: r.Name}
	case AnswerVariable:
		ask = ReadVariable{Name: r.Name}
	case AnswerTopic:
		ask = ReadTopic{Name: r.Name}
	case AnswerReleased:
		ask = released{r.Names}
	default:
		return false
	}
	c := m.client(r.Client)
	if c.requests[r.ID] != nil {
		return false
	}
	a := m.newAnswer(c, r.ID, m.space(r.Namespace), ask)
	a.got, a.given, a.durable, a.answer = got, r.Given, true, Answer{Met: true}
	// Another read gets what is there now. Its results are kept until then.
	a.stale = r.Kind == AnswerVariable || r.Kind == AnswerTopic
	for _, v := range got {
		v.places++
		a.answer.Values = append(a.answer.Values, v.Value)
	}
	switch {
	case r.Kind == AnswerReleased:
		m.keepRelease(a)
		return true
	case !r.Given:
		m.arm(a, m.now.Add(placeKept))
		return true
	}
	a.kept = true
	c.answered = append(c.answered, a)
	c.keptBytes += a.bytes()
	m.arm(a, m.now.Add(answerKept))
	return true
}

// newAnswer returns a request that was met.
func (m *Machine) newAnswer(c *client, id string, s *space, ask Ask) *request {
	m.sequence++
	r := &request{sequence: m.sequence, client: c, id: id, space: s, ask: ask, met: true}
	m.use(s.name, requestBytes)
	c.requests[id] = r
	return r
}

func (m *Machine) buildNode(r MetadataRow) bool {
	m.nodes = max(m.nodes, r.Number)
	s := m.space(r.Namespace)
	if s.metadata == nil {
		s.metadata = &node{}
	}
	at := s.metadata
	for _, name := range r.Path[:len(r.Path)-1] {
		if at = at.children[name]; at == nil {
			return false
		}
	}
	if at.leaf != nil {
		return false
	}
	n := m.child(s, at, r.Path[len(r.Path)-1])
	n.number = r.Number
	if r.IsLeaf {
		n.leaf = slices.Concat([]byte{}, r.Leaf)
		m.use(s.name, uint64(len(n.leaf)))
	}
	return true
}
