package plugins

// Calls is the number of calls that are kept.
func (m *Machine) Calls() int { return len(m.calls) }
