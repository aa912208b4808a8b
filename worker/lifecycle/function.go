package lifecycle

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// function is a function that has not arrived and that attempts wait for. It is requested once in
// each session, however many wait.
type function struct {
	Function
	// number counts the functions in the order of their first requests.
	number uint64
	// requested is the time of the request; zero: not in this session.
	requested time.Time
	// waiting are exactly the attempts that wait for it, in the order of their assignment.
	waiting []*attempt
}

func (m *Machine) awaitFunction(a *attempt, needed Function) {
	f := m.functions[needed.Hash]
	if f == nil {
		m.lastFunction++
		f = &function{Function: needed, number: m.lastFunction}
		m.functions[needed.Hash] = f
	}
	if f.requested.IsZero() {
		m.request(f)
	}
	a.function = f
	f.waiting = append(f.waiting, a)
}

// missing returns the functions that attempts wait for, in the order of the first requests.
func (m *Machine) missing() []*function {
	return slices.SortedFunc(maps.Values(m.functions), func(a, b *function) int { return cmp.Compare(a.number, b.number) })
}

func (m *Machine) request(f *function) {
	f.requested = m.now
	m.do(NeedFunction{Function: f.Hash})
}

// requestFunctions requests all functions that are still missing: a session begins, and requests of
// the last one may be lost.
func (m *Machine) requestFunctions() {
	for _, f := range m.missing() {
		m.request(f)
	}
}

// onDisconnected stops the time that attempts wait for functions.
func (m *Machine) onDisconnected() {
	// order-free: each is changed independently.
	for _, f := range m.functions {
		f.requested = time.Time{}
	}
}

func (m *Machine) onFunctionsCame(e FunctionsCame) {
	for _, hash := range e.Functions {
		f := m.functions[hash]
		if f == nil {
			continue
		}
		delete(m.functions, hash)
		for _, a := range f.waiting {
			a.function = nil
			m.admitIfMade(a)
		}
	}
}

// endFunction ends an attempt's wait for its function.
func (m *Machine) endFunction(a *attempt) {
	f := a.function
	if f == nil {
		return
	}
	a.function = nil
	f.waiting = slices.DeleteFunc(f.waiting, func(b *attempt) bool { return b == a })
	if len(f.waiting) == 0 {
		delete(m.functions, f.Hash)
	}
}

// expireFunctions fails the attempts that have waited in vain for their functions in this session.
func (m *Machine) expireFunctions() {
	if len(m.functions) == 0 {
		return
	}
	for _, f := range m.missing() {
		for _, a := range slices.Clone(f.waiting) {
			if f.requested.IsZero() || m.now.Sub(f.requested) < m.config.FunctionWait || m.now.Sub(a.since) < m.config.FunctionWait {
				continue
			}
			m.log.add(a.ref, "its function did not arrive")
			m.withdraw(a)
			m.do(Report{Ref: a.ref, Outcome: Failed, Reason: "FUNCTION_NOT_FOUND", Message: fmt.Sprintf(
				"the function %s (%s) did not arrive within %v", f.Name, f.Hash, m.config.FunctionWait)})
		}
	}
}

// checkFunctions checks that attempts wait for every missing function.
func (m *Machine) checkFunctions() error {
	// order-free: any one broken function is as good as another.
	for hash, f := range m.functions {
		if len(f.waiting) == 0 || f.Hash != hash {
			return fmt.Errorf("lifecycle: function %s is needed by nobody", f.Name)
		}
		for _, a := range f.waiting {
			if m.attempts[a.ref] != a || a.function != f {
				return fmt.Errorf("lifecycle: attempt %s is listed as waiting for function %s", a.ref, f.Name)
			}
		}
	}
	return nil
}
