//go:build cgo && linux

package ipc_test

import (
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/ipc"
	"github.com/millrace/millrace/transfer/objindex"
	"github.com/millrace/millrace/transfer/transfertest"
)

func ref(task int) transfer.Ref { return transfer.Ref{Task: ids.TaskID(task + 1), Generation: 1} }

func newIndex(tb testing.TB) *objindex.Index {
	tb.Helper()
	b, err := objindex.New(8<<10, 0)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { closing(tb, b) })
	return b
}

// suiteBytes is more than any test of the suite uses.
const suiteBytes = 1 << 30

func TestGPUConformance(t *testing.T) {
	for name, change := range map[string]func(*ipc.Config){
		"gather": nil, "copy engine": func(c *ipc.Config) { c.NoGather = true },
	} {
		// Combines each way to find objects with each kind of sink and with one of the ways to
		// copy.
		t.Run(name, func(t *testing.T) {
			h := harness(false, change)
			h.Batches = change != nil
			h.Run(t)
		})
		t.Run(name+" with an index", func(t *testing.T) {
			h := harness(true, change)
			h.CanStall = false // no message to the peer could stall
			h.Batches = change == nil
			h.Run(t)
		})
	}
}

func harness(shows bool, change func(*ipc.Config)) transfertest.Harness {
	rooms := map[transfer.Path]*transfertest.Room{}
	processes := map[*transfertest.Objects]*child{}
	return transfertest.Harness{
		Serve: func(t *testing.T, source transfer.Source) (transfer.Peer, func()) {
			t.Helper()
			objects := source.(*transfertest.Objects)
			space := objects.Room().Space().(*held)
			address := freeAddress()
			s, err := borrow.Listen(address, lending(space, space.export, source))
			if err != nil {
				t.Fatal(err)
			}
			end := sync.OnceFunc(func() { closing(t, s) })
			t.Cleanup(end)
			return transfer.Peer{Worker: 7, Name: "source", Address: address}, func() {
				end()
				processes[objects].kill()
			}
		},
		Path: func(t *testing.T, stall time.Duration) transfer.Path {
			t.Helper()
			r := newReader(t, suiteBytes, func(c *ipc.Config) {
				c.StallTimeout = stall
				if change != nil {
					change(c)
				}
			})
			rooms[r.path] = r.room
			return r.path
		},
		CanStall: true,
		Objects: func(t *testing.T) *transfertest.Objects {
			t.Helper()
			h, c := newHeld(t, suiteBytes)
			objects := transfertest.NewObjectsIn(transfertest.NewRoom(h))
			if shows {
				objects.PublishTo(newIndex(t))
			}
			processes[objects] = c
			return objects
		},
		Room: func(path transfer.Path) *transfertest.Room { return rooms[path] },
	}
}
