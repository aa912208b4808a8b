package rpc

import (
	"context"
	"errors"
	"fmt"
	"testing"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/server/plugins"
	"github.com/millrace/millrace/server/schedapi"
)

// undrained is a scheduler that is not asked for anything but whether it drains. It does not.
type undrained struct{ schedapi.Scheduler }

func (undrained) Draining() <-chan struct{} { return nil }

// Nothing waits for the answer to a call whose caller has gone before the workers answered.
func TestCallsOfPluginsThatWereGivenUpAreForgotten(t *testing.T) {
	s := newPluginService(&Server{scheduler: undrained{}})
	orders := make(chan plugins.Effect, 1)
	s.orders[1] = orders
	s.carryOut(s.machine.Join(1, "w"))
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
	last, _ := s.machine.Find("p1")
	s.carryOut(s.machine.Report(1, (<-orders).Revision, []plugins.Failure{{Version: last.Version, Failures: "failed"}}))
	if list := s.machine.Plugins(); len(list) != 1 || list[0].Name != "p0" {
		t.Errorf("the plugins are %v", list)
	}
}

// Processes of workers have the plugins of the scheduler before, and compare versions: a plugin of
// this one must not look like one of those.
func TestVersionsOfPluginsAreNotUsedAgain(t *testing.T) {
	used := make(map[uint64]string)
	for _, name := range []string{"a", "b"} {
		s := newPluginService(&Server{scheduler: undrained{}})
		if _, err := s.RegisterPlugin(t.Context(), &pb.RegisterPluginRequest{Plugin: &pb.Plugin{
			Name: name, Setup: &pb.FunctionCall{Name: "package:function"},
		}}); err != nil {
			t.Fatal(err)
		}
		p, _ := s.machine.Find(name)
		if other, again := used[p.Version]; again {
			t.Errorf("plugin %s has version %d, as plugin %s of the scheduler before", name, p.Version, other)
		}
		used[p.Version] = name
	}
}
