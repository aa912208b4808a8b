// Package templates is a Machine: it keeps the templates of graphs that were used last, and makes
// the tasks of their instances.
//
// A template is named by the hash of its content, and each namespace has its own. Templates are
// durable, but the order of their uses is not: after a restart, it is that of their definitions.
package templates

import (
	"container/list"
	"errors"
	"fmt"

	"github.com/millrace/millrace/internal/invariant"
)

// Limits bound what a Machine keeps.
type Limits struct {
	// Templates and Bytes bound one namespace. No template is larger than Bytes.
	Templates int
	Bytes     int64
	// AllBytes bounds all namespaces together. REQUIRES: it is not below Bytes.
	AllBytes int64
}

// DefaultLimits are those that the API tells (Template in submission.proto).
func DefaultLimits() Limits { return Limits{Templates: 1000, Bytes: 64 << 20, AllBytes: 256 << 20} }

// Machine is not safe for concurrent use.
type Machine struct {
	limits Limits
	spaces map[string]*space
	// order lists all templates (*entry), the one that was used last first.
	order *list.List
	bytes int64
	// uses counts all uses.
	uses uint64
}

// space holds the templates of a namespace, of which there is at least one.
type space struct {
	name   string
	byHash map[Hash]*entry
	// order lists the entries, the one that was used last first.
	order *list.List
	bytes int64
}

// entry is a template with its places in both lists.
type entry struct {
	*Template
	space *space
	// used is the number of its last use.
	used         uint64
	inSpace, all *list.Element
}

// New returns a machine without templates.
func New(limits Limits) *Machine {
	return &Machine{limits: limits, spaces: map[string]*space{}, order: list.New()}
}

// Limits returns the limits.
func (m *Machine) Limits() Limits { return m.limits }

// Len returns the number of templates.
func (m *Machine) Len() int { return m.order.Len() }

// Bytes returns the memory of all templates.
func (m *Machine) Bytes() int64 { return m.bytes }

// Get returns a template of a namespace, and counts this as a use; nil if there is none.
func (m *Machine) Get(namespace string, hash Hash) *Template {
	e := m.find(namespace, hash)
	if e == nil {
		return nil
	}
	e.space.order.MoveToFront(e.inSpace)
	m.order.MoveToFront(e.all)
	m.uses++
	e.used = m.uses
	return e.Template
}

func (m *Machine) find(namespace string, hash Hash) *entry {
	if s := m.spaces[namespace]; s != nil {
		return s.byHash[hash]
	}
	return nil
}

// Put keeps a template, and drops those that were used longest ago if there are too many. It
// returns the template that has the hash, which is the known one if there is one, and the rows that
// changed. REQUIRES: t.Bytes is not above Limits.Bytes.
func (m *Machine) Put(namespace string, t *Template) (*Template, []*TemplateChanged) {
	if known := m.Get(namespace, t.Hash); known != nil {
		return known, nil
	}
	s := m.add(namespace, t).space
	changed := []*TemplateChanged{{Namespace: namespace, Template: t}}
	for s.bytes > m.limits.Bytes || s.order.Len() > m.limits.Templates {
		changed = append(changed, m.drop(s.order.Back().Value.(*entry)))
	}
	for m.bytes > m.limits.AllBytes {
		changed = append(changed, m.drop(m.order.Back().Value.(*entry)))
	}
	m.verify()
	return t, changed
}

// add adds a template that is not known.
func (m *Machine) add(namespace string, t *Template) *entry {
	s := m.spaces[namespace]
	if s == nil {
		s = &space{name: namespace, byHash: map[Hash]*entry{}, order: list.New()}
		m.spaces[namespace] = s
	}
	m.uses++
	e := &entry{Template: t, space: s, used: m.uses}
	e.inSpace, e.all = s.order.PushFront(e), m.order.PushFront(e)
	s.byHash[t.Hash] = e
	s.bytes += t.Bytes
	m.bytes += t.Bytes
	return e
}

func (m *Machine) drop(e *entry) *TemplateChanged {
	s := e.space
	s.order.Remove(e.inSpace)
	m.order.Remove(e.all)
	delete(s.byHash, e.Hash)
	s.bytes -= e.Bytes
	m.bytes -= e.Bytes
	if len(s.byHash) == 0 {
		delete(m.spaces, s.name)
	}
	return &TemplateChanged{Namespace: s.name, Template: &Template{Hash: e.Hash}, Gone: true}
}

func (m *Machine) verify() {
	if invariant.Enabled {
		if err := m.Check(); err != nil {
			panic(err)
		}
	}
}

// Check returns an error if an invariant is broken.
func (m *Machine) Check() error {
	var problems []error
	count, bytes := 0, int64(0)
	// order-free: the order changes only the order of the problems.
	for name, s := range m.spaces {
		own := int64(0)
		// order-free: the order changes only the order of the problems.
		for hash, e := range s.byHash {
			own += e.Bytes
			if e.Hash != hash || e.space != s {
				problems = append(problems, fmt.Errorf("templates: %s of %q is recorded as %s of %q", e.Hash, e.space.name, hash, name))
			}
		}
		count, bytes = count+len(s.byHash), bytes+own
		if own != s.bytes || len(s.byHash) != s.order.Len() || len(s.byHash) == 0 {
			problems = append(problems, fmt.Errorf("templates: namespace %q has %d templates of %d bytes, and counted are %d of %d",
				name, len(s.byHash), own, s.order.Len(), s.bytes))
		}
		if own > m.limits.Bytes || len(s.byHash) > m.limits.Templates {
			problems = append(problems, fmt.Errorf("templates: namespace %q is above its limits: %d of %d bytes", name, len(s.byHash), own))
		}
	}
	if count != m.order.Len() || bytes != m.bytes || bytes > m.limits.AllBytes {
		problems = append(problems, fmt.Errorf("templates: there are %d of %d bytes, and counted are %d of %d", count, bytes, m.order.Len(), m.bytes))
	}
	return errors.Join(problems...)
}
