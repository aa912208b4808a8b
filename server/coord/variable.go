package coord

import "time"

// variable is a named value. It exists while it has a value or a line.
type variable struct {
	name    string
	value   *stored
	waiting []*request
}

func (a ReadVariable) same(other Ask) bool { return other == Ask(a) }

func (m *Machine) variable(s *space, name string) *variable {
	v := s.variables[name]
	if v == nil {
		v = &variable{name: name}
		s.variables[name] = v
		m.addName(s, name)
	}
	return v
}

func (m *Machine) tidyVariable(s *space, v *variable) {
	if v.value == nil && len(v.waiting) == 0 {
		delete(s.variables, v.name)
		m.dropName(s, v.name)
	}
}

func (m *Machine) enterVariable(r *request, ask ReadVariable) {
	v := m.variable(r.space, ask.Name)
	if v.value == nil {
		v.waiting = append(v.waiting, r)
		return
	}
	m.readVariable(r, v)
}

// readVariable gives the value to a request. Results in it are kept until the reader holds them.
func (m *Machine) readVariable(r *request, v *variable) {
	answer := Answer{Met: true, Values: []Value{v.value.Value}}
	if v.value.Hold == 0 {
		m.meet(r, answer)
		return
	}
	v.value.places++
	m.meet(r, answer, v.value)
}

// SetVariable gives a variable a value.
func (m *Machine) SetVariable(now time.Time, namespace, name string, value Value, out []Effect) ([]Effect, *Error) {
	m.begin(now, out)
	s := m.space(namespace)
	var names []string
	if s.variables[name] == nil {
		names = append(names, name)
	}
	if err := m.roomFor(s, ReadVariable{name}.String(), value.size(), names...); err != nil {
		m.tidySpace(s)
		return m.end(), err
	}
	v := m.variable(s, name)
	if v.value != nil {
		m.unstore(v.value)
	}
	v.value = m.store(s.name, value)
	m.put(VariableRow{s.name, name, m.keep(v.value)})
	line := v.waiting
	v.waiting = nil
	for _, r := range line {
		m.readVariable(r, v)
	}
	return m.end(), nil
}

// DeleteVariable forgets the value of a variable. Calls that wait for one go on.
func (m *Machine) DeleteVariable(now time.Time, namespace, name string, out []Effect) []Effect {
	m.begin(now, out)
	if s := m.spaces[namespace]; s != nil {
		if v := s.variables[name]; v != nil && v.value != nil {
			m.gone(VariableRow{Namespace: namespace, Name: name})
			m.unstore(v.value)
			v.value = nil
			m.tidyVariable(s, v)
		}
	}
	return m.end()
}
