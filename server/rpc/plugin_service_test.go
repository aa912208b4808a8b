package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/server/loop"
	"github.com/millrace/millrace/server/plugins"
)

// scheduler returns one that runs until the test ends.
func scheduler(t *testing.T) *loop.Loop {
	t.Helper()
	l := loop.New(loop.Config{})
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { l.Run(ctx) })
	t.Cleanup(func() { cancel(); group.Wait() })
	return l
}

// find returns the plugin of a name.
func (s *pluginService) find(t *testing.T, name string) (p plugins.Plugin) {
	t.Helper()
	if err := s.step(t.Context(), func(m *plugins.Machine) []plugins.Effect { p, _ = m.Find(name); return nil }); err != nil {
		t.Fatal(err)
	}
	return p
}

// Nothing waits for the answer to a call whose caller has gone before the workers answered.
func TestCallsOfPluginsThatWereGivenUpAreForgotten(t *testing.T) {
	s := newPluginService(&Server{scheduler: scheduler(t)})
	step := func(change func(m *plugins.Machine) []plugins.Effect) {
		t.Helper()
		if err := s.step(t.Context(), change); err != nil {
			t.Fatal(err)
		}
	}
	orders := make(chan plugins.Effect, 1)
	s.orders[1] = orders
	step(func(m *plugins.Machine) []plugins.Effect { return m.Join(1, "w") })
	<-orders
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for i := range 100 {
		request := &pb.RegisterPluginRequest{Plugin: &pb.Plugin{
			Name: fmt.Sprint("p", i%2), Setup: &pb.FunctionCall{Name: "package:function"},
		}}
		if _, err := s.RegisterPlugin(gone, request); !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v", err)
		}
	}
	if len(s.answers) != 0 {
		t.Errorf("%d answers are kept", len(s.answers))
	}
	// A setup that fails later takes its plugin away, although nobody waits for it.
	last := s.find(t, "p1")
	step(func(m *plugins.Machine) []plugins.Effect {
		return m.Report(1, (<-orders).Revision, []plugins.Failure{{Version: last.Version, Failures: "failed"}})
	})
	step(func(m *plugins.Machine) []plugins.Effect {
		if list := m.Plugins(); len(list) != 1 || list[0].Name != "p0" {
			t.Errorf("the plugins are %v", list)
		}
		return nil
	})
}

// Processes of workers have the plugins of the scheduler before, and compare versions: a plugin of
// this one must not look like one of those.
func TestVersionsOfPluginsAreNotUsedAgain(t *testing.T) {
	used := make(map[uint64]string)
	for _, name := range []string{"a", "b"} {
		s := newPluginService(&Server{scheduler: scheduler(t)})
		if _, err := s.RegisterPlugin(t.Context(), &pb.RegisterPluginRequest{Plugin: &pb.Plugin{
			Name: name, Setup: &pb.FunctionCall{Name: "package:function"},
		}}); err != nil {
			t.Fatal(err)
		}
		p := s.find(t, name)
		if other, again := used[p.Version]; again {
			t.Errorf("plugin %s has version %d, as plugin %s of the scheduler before", name, p.Version, other)
		}
		used[p.Version] = name
	}
}
