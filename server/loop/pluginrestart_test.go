package loop_test

import (
	"errors"
	"testing"

	"github.com/millrace/millrace/server/plugins"
	"github.com/millrace/millrace/server/schedapi"
)

// change changes the plugins, and returns the effects.
func (s *start) change(change func(*plugins.Machine) []plugins.Effect) (effects []plugins.Effect) {
	s.t.Helper()
	s.must(s.Plugins(s.t.Context(), false, func(m *plugins.Machine) []plugins.Effect {
		effects = change(m)
		return effects
	}))
	s.must(s.Recorded(s.t.Context()))
	return effects
}

// A worker that comes back after a restart is told to have just what it has: its processes compare
// versions, and call neither setup nor teardown. (docs/running.md: plugins.)
func TestPluginsOutliveTheScheduler(t *testing.T) {
	s := fresh(t)
	join := func(m *plugins.Machine) []plugins.Effect { return m.Join(1, "w") }
	s.change(func(m *plugins.Machine) []plugins.Effect { return m.Register(1, "a", []byte("first")) })
	s.change(func(m *plugins.Machine) []plugins.Effect { return m.Register(2, "b", []byte("b")) })
	s.change(func(m *plugins.Machine) []plugins.Effect { return m.Register(3, "a", []byte("a")) })
	s.change(func(m *plugins.Machine) []plugins.Effect { return m.Unregister(4, "b") })
	before := s.change(join)[0].Plugins
	s = s.restart()
	after := s.change(join)[0].Plugins
	if len(after) != 1 || after[0].Name != "a" || after[0].Version != before[0].Version || string(after[0].Body) != "a" {
		t.Errorf("before the restart a worker was told to have %+v, and after it %+v", before, after)
	}

	s.directory.breakNow(errDisk)
	_ = s.Recorded(t.Context())
	for range 2 { // The disk is known to fail after the first.
		_, _ = s.OpenClient(t.Context(), schedapi.ClientSpec{Namespace: "n"})
	}
	err := s.Plugins(t.Context(), true, func(*plugins.Machine) []plugins.Effect {
		t.Error("a plugin is registered that cannot be durable")
		return nil
	})
	var journal *schedapi.Error
	if !errors.As(err, &journal) || journal.Kind != schedapi.ErrJournal {
		t.Errorf("with a full disk a registration ends with %v", err)
	}
}
