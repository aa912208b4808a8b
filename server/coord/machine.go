// Package coord is a Machine: the state by which clients coordinate. It has locks and semaphores,
// variables, events, queues, topics and metadata. It decides who gets a lock or a value, who waits
// and for how long, and what is kept for whom. It passes values on unread.
//
// A call that may have to wait is an Ask. It is answered by an EffectAnswered, at once or later.
// All other calls are methods that return their results.
package coord

import (
	"cmp"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/invariant"
)

// Config are the limits of a machine. Zero fields mean the defaults named here.
type Config struct {
	// Bytes bounds the values, names and waiting calls of all namespaces together. 0: 512 MiB. One
	// namespace may take as much as is free for all, so alone it takes half, and never all: a rule
	// of shared buffers in switches (Choudhury, Hahne: dynamic queue length thresholds, 1998).
	Bytes uint64
	// Names bounds the names in one namespace. 0: 100,000.
	Names int
	// Waiting bounds the waiting calls of one client. 0: 10,000.
	Waiting int
	// Unleased and UnleasedBytes bound the waiting calls of one namespace that have no client, and
	// the memory that they take. In all namespaces together they take eight times as much. 0:
	// 1,000 and 8 MiB.
	Unleased      int
	UnleasedBytes uint64
	// TopicMessages and TopicBytes bound one topic: its oldest messages are dropped. 0: 10,000 and
	// 16 MiB.
	TopicMessages int
	TopicBytes    uint64
	// Messages is the number after which messages of topics are numbered, and Grants the one after
	// which grants are, above those of earlier starts of the scheduler.
	Messages, Grants uint64
	// Durable says that the rows which survive a restart are kept, and reported by EffectChanged.
	Durable bool
	// Piece bounds the rows of a piece of Rows. 0: 256.
	Piece int
}

const (
	// placeKept is the time for which a call whose caller has gone keeps its place in line.
	placeKept = 10 * time.Second
	// answerKept is the time for which an answer is kept for the case that the caller did not get
	// it, or does not hold the results yet to which it refers.
	answerKept = 30 * time.Second
	// releaseKept is the time for which it is remembered that a call has released locks: longer
	// than clients repeat it.
	releaseKept = 2 * time.Minute
	// answersKept and answerBytes bound the answers that are kept for one client. As many releases
	// are remembered.
	answersKept = 1024
	answerBytes = 16 << 20
	// nameBytes and requestBytes are the memory that a name and a waiting call take, about.
	nameBytes    = 256
	requestBytes = 512
	// topicsRead bounds the topics of which one client is told that they have messages.
	topicsRead = 100
	// batchBytes bounds the values of one answer; a single value may be larger.
	batchBytes = 32 << 20
)

// Machine is the state of all namespaces. REQUIRES: one user at a time.
type Machine struct {
	config Config
	now    time.Time
	out    []Effect

	spaces  map[string]*space
	clients map[ids.ClientID]*client
	// listening are the requests with a caller, by ticket.
	listening map[uint64]*request
	timers    timers
	// used is the memory that counts against Config.Bytes, usedBy that of each namespace. Only use
	// and giveBack change them.
	used   uint64
	usedBy map[string]uint64
	// unleasedBytes is the sum of those of all namespaces.
	unleasedBytes uint64
	// sequence numbers requests in the order in which they came. values, grants and nodes are the
	// last numbers of values, of grants and of nodes of the metadata.
	sequence, values, grants, nodes uint64
	// table has the durable rows, changes those that the step in progress has changed. loading
	// means that the state is built of rows, so that none changes.
	table   *table
	changes []Change
	loading bool
}

// New returns a machine without any state.
func New(config Config) *Machine {
	config.Bytes = cmp.Or(config.Bytes, 512<<20)
	config.Names = cmp.Or(config.Names, 100_000)
	config.Waiting = cmp.Or(config.Waiting, 10_000)
	config.Unleased = cmp.Or(config.Unleased, 1000)
	config.UnleasedBytes = cmp.Or(config.UnleasedBytes, 8<<20)
	config.TopicMessages = cmp.Or(config.TopicMessages, 10_000)
	config.TopicBytes = cmp.Or(config.TopicBytes, 16<<20)
	config.Piece = cmp.Or(config.Piece, 256)
	return &Machine{
		config: config, spaces: map[string]*space{}, clients: map[ids.ClientID]*client{}, listening: map[uint64]*request{},
		usedBy: map[string]uint64{}, grants: config.Grants, table: newTable(),
	}
}

// client is a lease that has asked for something and has a request or a grant.
type client struct {
	id ids.ClientID
	// requests are those with an id, by id. waiting counts those that wait, with and without an id.
	requests map[string]*request
	waiting  int
	// anonymous are the requests without an id, in the order in which they came.
	anonymous []*request
	// answered are the answers that are kept, oldest first; keptBytes is the size of their values.
	answered  []*request
	keptBytes uint64
	// released are the releases that are remembered, oldest first.
	released []*request
	// grants are what the client holds, oldest first.
	grants []*grant
	// queues are those that the client has opened.
	queues []*queue
	// reads are the topics that the client reads by calls that wait, the latest one last.
	reads []reading
}

// client returns the record of a client, and makes it if there is none.
func (m *Machine) client(id ids.ClientID) *client {
	c := m.clients[id]
	if c == nil && id != 0 {
		c = &client{id: id, requests: map[string]*request{}}
		m.clients[id] = c
	}
	return c
}

// tidyClient drops the record of a client that has nothing.
func (m *Machine) tidyClient(c *client) {
	if c != nil && len(c.requests)+len(c.anonymous)+len(c.answered)+len(c.released)+len(c.grants)+len(c.queues)+len(c.reads) == 0 {
		delete(m.clients, c.id)
	}
}

// ClientGone ends everything that a client has: its calls, its locks, and the answers that are kept
// for it.
func (m *Machine) ClientGone(now time.Time, id ids.ClientID, out []Effect) []Effect {
	m.begin(now, out)
	c := m.clients[id]
	if c == nil {
		return m.end()
	}
	var all []*request
	// sorted: by sequence, below.
	for _, r := range c.requests {
		all = append(all, r)
	}
	all = append(all, c.anonymous...)
	slices.SortFunc(all, func(a, b *request) int { return cmp.Compare(a.sequence, b.sequence) })
	// NB: all callers are told before the first call leaves its line, because that may be the turn
	// of another call of this client.
	for _, r := range all {
		if r.ticket != 0 {
			m.refuse(r, &Error{Kind: ErrClientGone, Object: id.String(), Message: r.ask.String() + ": the client's lease ended while the call waited: open a new client"})
		}
	}
	for _, r := range all {
		m.drop(r)
	}
	for len(c.grants) > 0 {
		m.release(c.grants[0], c.grants[0].names)
	}
	for len(c.queues) > 0 {
		q := c.queues[0]
		m.leaveQueue(c, q)
		q.space.tidyQueue(m, q)
	}
	c.reads = nil
	m.tidyClient(c)
	return m.end()
}

// NextDeadline returns the time at which TimePassed has something to do.
func (m *Machine) NextDeadline() (time.Time, bool) {
	if len(m.timers) == 0 {
		return time.Time{}, false
	}
	return m.timers[0].deadline, true
}

// TimePassed ends the waits and forgets the answers whose time is over.
func (m *Machine) TimePassed(now time.Time, out []Effect) []Effect {
	m.begin(now, out)
	for {
		at, ok := m.NextDeadline()
		if !ok || at.After(now) {
			return m.end()
		}
		r := m.timers[0]
		m.disarm(r)
		m.expire(r)
	}
}

func (m *Machine) begin(now time.Time, out []Effect) { m.now, m.out = now, out }

func (m *Machine) end() []Effect {
	if len(m.changes) > 0 {
		m.emit(Effect{Kind: EffectChanged, Changes: m.changes})
		m.changes = nil
	}
	if invariant.Enabled {
		if err := m.Check(); err != nil {
			panic(err)
		}
	}
	out := m.out
	m.out = nil
	return out
}

func (m *Machine) emit(effect Effect) { m.out = append(m.out, effect) }

// use counts memory that a namespace takes, giveBack memory that it takes no more.
func (m *Machine) use(namespace string, bytes uint64) {
	m.used += bytes
	m.usedBy[namespace] += bytes
}

func (m *Machine) giveBack(namespace string, bytes uint64) {
	m.used -= bytes
	if m.usedBy[namespace] -= bytes; m.usedBy[namespace] == 0 {
		delete(m.usedBy, namespace)
	}
}

// space is the state of one namespace. It is dropped when it is empty.
type space struct {
	name       string
	semaphores map[string]*semaphore
	variables  map[string]*variable
	events     map[string]*event
	queues     map[string]*queue
	topics     map[string]*topic
	metadata   *node
	names      int
	// unleased counts the waiting calls that have no client, unleasedBytes the memory they take.
	unleased      int
	unleasedBytes uint64
}

func (m *Machine) space(name string) *space {
	s := m.spaces[name]
	if s == nil {
		s = &space{
			name: name, semaphores: map[string]*semaphore{}, variables: map[string]*variable{}, events: map[string]*event{},
			queues: map[string]*queue{}, topics: map[string]*topic{},
		}
		m.spaces[name] = s
	}
	return s
}

// roomFor returns an error if some names more, and some bytes beside them, do not fit.
func (m *Machine) roomFor(s *space, what string, bytes uint64, names ...string) *Error {
	if s.names+len(names) > m.config.Names {
		return full(what, "namespace %q has %d names of locks, variables, events, queues, topics and metadata, this call needs %d more, and %d are allowed: delete or close some, or use fewer names",
			s.name, s.names, len(names), m.config.Names)
	}
	for _, name := range names {
		bytes += nameBytes + uint64(len(name))
	}
	if own := m.usedBy[s.name]; own+bytes > m.config.Bytes-min(m.used, m.config.Bytes) {
		return full(what, "the scheduler keeps %d bytes for namespace %q, %d for all, and may keep %d; one namespace may have as much as is free: take values from queues, delete variables, or scatter data and store the futures",
			own, s.name, m.used, m.config.Bytes)
	}
	return nil
}

func (m *Machine) addName(s *space, name string) {
	s.names++
	m.use(s.name, nameBytes+uint64(len(name)))
}

func (m *Machine) dropName(s *space, name string) {
	s.names--
	m.giveBack(s.name, nameBytes+uint64(len(name)))
	m.tidySpace(s)
}

func (m *Machine) tidySpace(s *space) {
	if s.names == 0 {
		delete(m.spaces, s.name)
	}
}
