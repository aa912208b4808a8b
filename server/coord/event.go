package coord

import "time"

// event is a flag for which calls wait. It exists while it is set or has a line.
type event struct {
	name    string
	set     bool
	waiting []*request
}

func (a AwaitEvent) same(other Ask) bool { return other == Ask(a) }

func (m *Machine) event(s *space, name string) *event {
	e := s.events[name]
	if e == nil {
		e = &event{name: name}
		s.events[name] = e
		m.addName(s, name)
	}
	return e
}

func (m *Machine) tidyEvent(s *space, e *event) {
	if !e.set && len(e.waiting) == 0 {
		delete(s.events, e.name)
		m.dropName(s, e.name)
	}
}

func (m *Machine) enterEvent(r *request, ask AwaitEvent) {
	e := m.event(r.space, ask.Name)
	if e.set {
		m.meet(r, Answer{Met: true})
	} else {
		e.waiting = append(e.waiting, r)
	}
}

// SetEvent sets an event, which ends all waits for it.
func (m *Machine) SetEvent(now time.Time, namespace, name string, out []Effect) ([]Effect, *Error) {
	m.begin(now, out)
	s := m.space(namespace)
	if s.events[name] == nil {
		if err := m.roomFor(s, AwaitEvent{name}.String(), 0, name); err != nil {
			m.tidySpace(s)
			return m.end(), err
		}
	}
	e := m.event(s, name)
	if !e.set {
		m.put(EventRow{namespace, name})
	}
	e.set = true
	line := e.waiting
	e.waiting = nil
	for _, r := range line {
		m.meet(r, Answer{Met: true})
	}
	return m.end(), nil
}

// ClearEvent clears an event.
func (m *Machine) ClearEvent(now time.Time, namespace, name string, out []Effect) []Effect {
	m.begin(now, out)
	if s := m.spaces[namespace]; s != nil {
		if e := s.events[name]; e != nil {
			if e.set {
				m.gone(EventRow{namespace, name})
			}
			e.set = false
			m.tidyEvent(s, e)
		}
	}
	return m.end()
}
