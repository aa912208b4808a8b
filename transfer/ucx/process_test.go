package ucx

import (
	"os/exec"
	"testing"
	"time"
)

// released is an engine that accepts the release of endpoints.
type released struct{ quiet }

func (*released) release(int32) {}

// TestALostPeerIsDeadWhenItsProcessHasEnded: the mapping of a live process's memory must not be
// closed, because UCX still reads through it.
func TestALostPeerIsDeadWhenItsProcessHasEnded(t *testing.T) {
	for name, c := range map[string]struct{ lost, killed, foreign, want bool }{
		"closed":                     {},
		"lost and dead":              {lost: true, killed: true, want: true},
		"closed and dead":            {killed: true, want: true},
		"lost, and it lives":         {lost: true},
		"lost, of another container": {lost: true, killed: true, foreign: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command("sleep", "600")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			end := func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
			t.Cleanup(end)
			p := process{uint32(cmd.Process.Pid), thisProcess().namespace}
			if c.foreign {
				p.namespace++
			}
			dead := make(chan bool, 1)
			n := &conn{token: 1, closed: true, lost: c.lost, gone: make(chan struct{}), watch: p.watch(), unmap: func(d bool) { dead <- d }}
			if c.killed {
				end()
			}
			context := &Context{ended: make(chan struct{}), closed: true}
			close(context.ended)
			l := &loop{c: context, engine: &released{quiet{t: t}}, conns: map[uint64]*conn{1: n}}
			l.settle(n)
			context.serving.Wait()
			if got := <-dead; got != c.want {
				t.Errorf("dead: %v", got)
			}
			<-n.gone
		})
	}
}

func TestEnvelopesTellWhoMadeThem(t *testing.T) {
	if got, own := sender(seal(contentAddress, version{1, 19, 0}, []byte("x"))), thisProcess(); got != own || own.pid == 0 {
		t.Errorf("%v, not %v", got, own)
	}
	if w := thisProcess().watch(); w == nil || w.ended(time.Nanosecond) {
		t.Errorf("we have ended")
	}
}
