package loop

import (
	"context"
	"fmt"
	"sync"

	"github.com/dustin/go-humanize"

	"github.com/millrace/millrace/server/journal"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
	"github.com/millrace/millrace/server/templates"
)

// templateStore keeps templates. Only the owner of the loop adds one, but each submission looks
// some up, which waits for no other work of the loop.
type templateStore struct {
	mu sync.Mutex
	// machine is guarded by mu.
	machine *templates.Machine
}

// templateShare is the part of the scheduler's memory that templates may use.
const templateShare = 4

func newTemplates(config Config) templateStore {
	limits := config.Templates
	if limits == (templates.Limits{}) {
		limits = templates.DefaultLimits()
	}
	if most := config.Machine.MemoryBytes; most > 0 {
		limits.AllBytes = min(limits.AllBytes, int64(most/templateShare))
		limits.Bytes = min(limits.Bytes, limits.AllBytes)
	}
	return templateStore{machine: templates.New(limits)}
}

func (s *templateStore) get(namespace string, hash templates.Hash) *templates.Template {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machine.Get(namespace, hash)
}

// bytes returns the memory of all templates.
func (s *templateStore) bytes() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return uint64(s.machine.Bytes())
}

func (s *templateStore) load(row *templates.TemplateChanged) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.machine.Load(*row)
}

// Template returns a template of a namespace.
func (l *Loop) Template(namespace string, hash templates.Hash) *templates.Template {
	return l.templates.get(namespace, hash)
}

// DefineTemplate keeps a template.
func (l *Loop) DefineTemplate(ctx context.Context, namespace string, t *templates.Template) (*templates.Template, error) {
	var refused error
	err := l.inspect(ctx, func() { t, refused = l.defineTemplate(namespace, t) })
	if err == nil {
		err = refused
	}
	return t, err
}

func (l *Loop) defineTemplate(namespace string, t *templates.Template) (*templates.Template, error) {
	s := &l.templates
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.machine.Get(namespace, t.Hash); known != nil {
		return known, nil
	}
	if err := l.refuseNew(); err != nil {
		return nil, err
	}
	if most := s.machine.Limits().Bytes; t.Bytes > most {
		return nil, &schedapi.Error{Kind: schedapi.ErrInvalidField, Object: "template", Message: fmt.Sprintf(
			"it takes %s, and the scheduler keeps templates of %s for a namespace: make it of fewer tasks, scatter large arguments, or submit its tasks themselves",
			humanize.IBytes(uint64(t.Bytes)), humanize.IBytes(uint64(most)))}
	}
	used := l.machine.Held() + l.functions.Bytes() + uint64(s.machine.Bytes())
	if limit := l.config.Machine.MemoryBytes; limit > 0 && used+uint64(t.Bytes) > limit {
		return nil, &sched.Error{Kind: sched.ErrFull, Object: "memory", Message: fmt.Sprintf(
			"the scheduler holds %d of %d bytes, and the template needs %d: define it again when tasks have ended and been released, or give the scheduler more memory",
			used, limit, t.Bytes)}
	}
	kept, changed := s.machine.Put(namespace, t)
	if l.restarting.journal != nil {
		for _, row := range changed {
			l.note(row)
		}
	}
	return kept, nil
}

// templateRows is the source of the rows of templates.
func (l *Loop) templateRows() journal.Source {
	return func(cursor uint64, put func(row any)) (next uint64, more bool) {
		l.templates.mu.Lock()
		defer l.templates.mu.Unlock()
		return l.templates.machine.Rows(cursor, put)
	}
}
