package coord

import (
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// semaphore has up to limit holders at the same time; a lock has one. It exists while it has
// holders or a line.
//
// A request for several locks stands in the line of each. It is at its turn for a lock if the
// requests before it in that line and the holders leave room, also if those before it wait for
// other locks. It gets what it needs in one step, as soon as it is at its turn for enough locks. So
// nobody holds one lock while he waits for another, and nobody overtakes: all lines have the order
// in which the requests came.
type semaphore struct {
	name    string
	limit   uint32
	holders []*grant
	waiting []*request
}

// free is the number of holders for which there is room.
func (s *semaphore) free() int { return int(s.limit) - len(s.holders) }

// grant is what one Acquire has got, until all of it was released.
type grant struct {
	// number is its fencing number: it is above those of all grants before. given means that the
	// caller was told.
	number uint64
	given  bool
	client *client
	id     string
	space  *space
	ask    Acquire
	// names are the locks that are held.
	names []string
}

// granted returns the grant of a call; nil if there is none.
func (c *client) granted(id string) *grant {
	for _, g := range c.grants {
		if g.id == id {
			return g
		}
	}
	return nil
}

func (a Acquire) same(other Ask) bool {
	o, ok := other.(Acquire)
	return ok && a.Limit == o.Limit && a.Needed == o.Needed && slices.Equal(a.Names, o.Names)
}

// checkLimits returns an error if a lock is in use with another limit.
func (s *space) checkLimits(ask Acquire) *Error {
	for _, name := range ask.Names {
		if sem := s.semaphores[name]; sem != nil && sem.limit != ask.Limit {
			return &Error{Kind: ErrInvalidField, Object: "limit", Message: fmt.Sprintf(
				"limit: semaphore %q is in use with %d holders at most, and this call says %d: use the same number everywhere, or another name",
				name, sem.limit, ask.Limit)}
		}
	}
	return nil
}

func (m *Machine) enterSemaphores(r *request, ask Acquire) {
	m.use(r.space.name, uint64(len(ask.Names))*64)
	for _, name := range ask.Names {
		sem := m.semaphore(r.space, name, ask.Limit)
		sem.waiting = append(sem.waiting, r)
	}
	m.serveSemaphores(r.space, ask.Names)
}

// semaphore returns a semaphore, and makes it if there is none.
func (m *Machine) semaphore(s *space, name string, limit uint32) *semaphore {
	sem := s.semaphores[name]
	if sem == nil {
		sem = &semaphore{name: name, limit: limit}
		s.semaphores[name] = sem
		m.addName(s, name)
	}
	return sem
}

func (m *Machine) leaveSemaphores(r *request, ask Acquire) {
	m.giveBack(r.space.name, uint64(len(ask.Names))*64)
	for _, name := range ask.Names {
		sem := r.space.semaphores[name]
		sem.waiting = without(sem.waiting, r)
	}
	m.serveSemaphores(r.space, ask.Names)
}

// serveSemaphores gives locks to the requests that are at their turn, and drops the locks that
// nobody uses. names are the locks that have changed.
func (m *Machine) serveSemaphores(s *space, names []string) {
	for todo := slices.Clone(names); len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		sem := s.semaphores[name]
		if sem == nil {
			continue
		}
		for i := 0; i < min(sem.free(), len(sem.waiting)); i++ {
			r := sem.waiting[i]
			if got := s.turns(r); got != nil {
				m.acquire(r, got)
				// All of its lines are shorter.
				todo = append(todo, r.ask.(Acquire).Names...)
				i = -1
			}
		}
		m.tidySemaphore(s, sem)
	}
}

// turns returns the first locks for which a request is at its turn, as many as it needs; nil if
// there are not enough.
func (s *space) turns(r *request) (got []string) {
	ask := r.ask.(Acquire)
	for _, name := range ask.Names {
		sem := s.semaphores[name]
		if free := sem.free(); free > 0 && slices.Contains(sem.waiting[:min(free, len(sem.waiting))], r) {
			if got = append(got, name); len(got) == ask.Needed {
				return got
			}
		}
	}
	return nil
}

// acquire makes a request the holder of locks.
func (m *Machine) acquire(r *request, got []string) {
	ask := r.ask.(Acquire)
	m.giveBack(r.space.name, uint64(len(ask.Names))*64)
	m.grants++
	g := &grant{number: m.grants, given: r.ticket != 0, client: r.client, id: r.id, space: r.space, ask: ask, names: got}
	for _, name := range ask.Names {
		sem := r.space.semaphores[name]
		sem.waiting = without(sem.waiting, r)
	}
	for _, name := range got {
		sem := r.space.semaphores[name]
		sem.holders = append(sem.holders, g)
	}
	r.client.grants = append(r.client.grants, g)
	m.use(r.space.name, requestBytes+uint64(len(got))*64)
	r.grant = g
	m.put(g.row())
	m.meet(r, Answer{Met: true, Names: slices.Clone(got), Fence: g.number})
}

// release takes locks from a grant.
func (m *Machine) release(g *grant, names []string) {
	names = slices.Clone(names)
	for _, name := range names {
		sem := g.space.semaphores[name]
		sem.holders = slices.Delete(sem.holders, slices.Index(sem.holders, g), slices.Index(sem.holders, g)+1)
		g.names = slices.DeleteFunc(slices.Clone(g.names), func(n string) bool { return n == name })
		m.giveBack(g.space.name, 64)
	}
	if len(g.names) > 0 {
		m.put(g.row())
	} else {
		m.gone(GrantRow{Number: g.number})
		m.giveBack(g.space.name, requestBytes)
		c := g.client
		c.grants = slices.DeleteFunc(c.grants, func(other *grant) bool { return other == g })
		m.tidyClient(c)
	}
	m.serveSemaphores(g.space, names)
}

func (m *Machine) tidySemaphore(s *space, sem *semaphore) {
	if len(sem.holders)+len(sem.waiting) == 0 && s.semaphores[sem.name] == sem {
		delete(s.semaphores, sem.name)
		m.dropName(s, sem.name)
	}
}

// released is what a request asked for that gave locks back. It is kept for a while, so that a
// second try of a call whose answer was lost is told so, and not that the locks were lost.
type released struct{ names []string }

func (a released) String() string { return Acquire{Names: a.names}.String() }
func (released) same(Ask) bool    { return false }

// Release gives locks back that a client holds by the Acquire of an id; without an id, by its
// oldest Acquire that holds all of them. With an id, it may be repeated for a while.
func (m *Machine) Release(now time.Time, id ids.ClientID, request string, names []string, out []Effect) ([]Effect, *Error) {
	m.begin(now, out)
	c := m.clients[id]
	var found *grant
	if c != nil {
		for _, g := range c.grants {
			holds := !slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(g.names, name) })
			if holds && (request == "" || g.id == request) {
				found = g
				break
			}
		}
	}
	if found == nil && c != nil && c.hasReleased(request, names) {
		return m.end(), nil
	}
	if found == nil {
		return m.end(), &Error{Kind: ErrNotHeld, Object: names[0], Message: fmt.Sprintf(
			"%s: this client does not hold it: it was released or closed, or it was lost when the client's lease ended or the scheduler was started anew; acquire it again",
			Acquire{Names: names})}
	}
	m.release(found, names)
	if found.id != "" {
		m.rememberRelease(m.client(id), found, names)
	}
	return m.end(), nil
}

// hasReleased reports whether a call has released locks, as far as is remembered.
func (c *client) hasReleased(id string, names []string) bool {
	r := c.requests[id]
	if r == nil {
		return false
	}
	by, is := r.ask.(released)
	return is && !slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(by.names, name) })
}

// rememberRelease keeps the memory that a call has released locks.
func (m *Machine) rememberRelease(c *client, g *grant, names []string) {
	if r := c.requests[g.id]; r != nil {
		by, again := r.ask.(released)
		switch {
		case again:
			names = slices.Concat(by.names, names)
		case len(g.names) > 0:
			m.tidyClient(c)
			return // The caller of Acquire has gone, so nobody knows of this grant.
		}
		m.forget(r)
		c = m.client(c.id)
	}
	m.keepRelease(m.newAnswer(c, g.id, g.space, released{names}))
}

// keepRelease keeps the memory of a release for its time.
func (m *Machine) keepRelease(r *request) {
	r.given = true
	m.arm(r, m.now.Add(releaseKept))
	c := r.client
	c.released = append(c.released, r)
	m.putAnswer(r)
	if len(c.released) > answersKept {
		m.forget(c.released[0])
	}
}

// SemaphoreInfo describes a semaphore.
type SemaphoreInfo struct {
	// Limit is 0 if nobody uses it.
	Limit   uint32
	Holders []ids.ClientID
	Waiting int
}

// Semaphore describes a semaphore.
func (m *Machine) Semaphore(namespace, name string) (info SemaphoreInfo) {
	if s := m.spaces[namespace]; s != nil {
		if sem := s.semaphores[name]; sem != nil {
			info.Limit, info.Waiting = sem.limit, len(sem.waiting)
			for _, g := range sem.holders {
				info.Holders = append(info.Holders, g.client.id)
			}
		}
	}
	return info
}

// CloseSemaphore takes a semaphore from all who hold it, and ends the waits for it. It returns the
// number of holders.
func (m *Machine) CloseSemaphore(now time.Time, namespace, name string, out []Effect) (int, []Effect) {
	m.begin(now, out)
	s := m.spaces[namespace]
	if s == nil || s.semaphores[name] == nil {
		return 0, m.end()
	}
	sem := s.semaphores[name]
	closed := &Error{Kind: ErrClosed, Object: name, Message: fmt.Sprintf("semaphore %q was closed while the call waited: acquire it again if it is still in use", name)}
	// NB: all callers are told before the first call leaves the line, for it may be the turn of the
	// next one then.
	line := slices.Clone(sem.waiting)
	for _, r := range line {
		if r.ticket != 0 {
			m.refuse(r, closed)
		}
	}
	for _, r := range line {
		m.drop(r)
	}
	holders := slices.Clone(sem.holders)
	for _, g := range holders {
		m.release(g, []string{name})
	}
	return len(holders), m.end()
}
