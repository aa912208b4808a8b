package grpcpath_test

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/grpcpath"
	"github.com/millrace/millrace/transfer/transfertest"
)

// TestPartsMakeTheWhole: a large object that travels over several connections arrives complete,
// with any ratio between its size and that of a part.
func TestPartsMakeTheWhole(t *testing.T) {
	for _, streams := range []int{1, 2, 3, 16} {
		for _, sizes := range [][]int{{0}, {1}, {8 << 20}, {8<<20 + 1}, {16 << 20, 5, 0, 17<<20 + 3}, {40<<20 + 7}} {
			t.Run(fmt.Sprint(streams, sizes), func(t *testing.T) {
				objects := transfertest.NewObjects()
				var frames [][]byte
				for i, n := range sizes {
					frame := make([]byte, n)
					for at := range frame {
						frame[at] = byte(at>>16) ^ byte(at) ^ byte(i)
					}
					frames = append(frames, frame)
				}
				ref := transfer.Ref{Task: 1, Generation: 1}
				objects.Put(ref, "h", frames...)
				peer, _ := serve(t, objects, nil)
				path := grpcpath.New(grpcpath.Config{StallTimeout: transfertest.Patience, Streams: streams})
				sink := transfertest.NewSink()
				if err := path.Fetch(t.Context(), peer, []transfer.Ref{ref}, sink); err != nil {
					t.Fatal(err)
				}
				_, got, done, err := sink.Result(0)
				if !done || err != nil || len(got) != len(frames) {
					t.Fatalf("%v %v, %d frames", done, err, len(got))
				}
				for i := range frames {
					if !bytes.Equal(got[i], frames[i]) {
						t.Errorf("frame %d differs", i)
					}
				}
				transfertest.NoLeases(t, objects)
				if err := path.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// partsRefused is a source in which the other parts of one object are not here.
type partsRefused struct {
	transfer.Source
	task ids.TaskID

	mu sync.Mutex
	// asked counts the leases of the task.
	asked int
	// alone counts the requests for one object, as those for other parts are.
	alone int
}

// Lease is part of transfer.Source.
func (p *partsRefused) Lease(reader transfer.Reader, refs []transfer.Ref, ttl time.Duration) []transfer.Leased {
	leased := p.Source.Lease(reader, refs, ttl)
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(refs) == 1 {
		p.alone++
	}
	for i, r := range refs {
		if r.Task != p.task {
			continue
		}
		if p.asked++; p.asked > 1 {
			p.Source.Release([]transfer.LeaseID{leased[i].Lease})
			leased[i] = transfer.Leased{Err: fmt.Errorf("%w: %s", transfer.ErrNotHere, r)}
		}
	}
	return leased
}

// TestSeveralObjectsTravelInParts: each large object of a fetch uses all connections. An object
// fails alone, if it is missing or if one of its parts is.
func TestSeveralObjectsTravelInParts(t *testing.T) {
	objects := transfertest.NewObjects()
	const missing, broken = 3, 5
	sizes := [][]int{{16 << 20}, {100}, nil, {20<<20 + 7, 3}, {40 << 20}, {0}, {8 << 20}, {24<<20 + 1}, {5}}
	var refs []transfer.Ref
	frames := map[ids.TaskID][][]byte{}
	for i, list := range sizes {
		ref := transfer.Ref{Task: ids.TaskID(i + 1), Generation: 1}
		refs = append(refs, ref)
		for k, n := range list {
			frame := make([]byte, n)
			for at := range frame {
				frame[at] = byte(at>>16) ^ byte(at) ^ byte(i) ^ byte(k)<<4
			}
			frames[ref.Task] = append(frames[ref.Task], frame)
		}
		if ref.Task != missing {
			objects.Put(ref, "h", frames[ref.Task]...)
		}
	}
	for name, far := range map[string]bool{"memory": false, "a device": true} {
		t.Run(name, func(t *testing.T) {
			source := &partsRefused{Source: objects, task: broken}
			data := &grpcpath.Server{Source: source}
			peer, _ := serveWith(t, data, grpc.Creds(data.Credentials(nil)))
			sink := transfertest.NewSink()
			if far {
				sink = transfertest.NewSinkIn(transfertest.NewRoom(limited(t)))
			}
			if err := newPath(t, transfertest.Patience).Fetch(t.Context(), peer, refs, sink); err != nil {
				t.Fatal(err)
			}
			for i, ref := range refs {
				_, got, done, err := sink.Result(i)
				if bad := ref.Task == missing || ref.Task == broken; !done || errors.Is(err, transfer.ErrNotHere) != bad || (err != nil) != bad {
					t.Errorf("object %s: done %v, %v", ref, done, err)
				} else if !bad {
					for k, want := range frames[ref.Task] {
						if !bytes.Equal(got[k], want) {
							t.Errorf("object %s: frame %d differs", ref, k)
						}
					}
				}
			}
			// Parts are multiples of 8 MiB: 16 MiB are two, 20 MiB three, 40 MiB three of 16, and
			// 24 MiB and a byte two of 16. The first of each comes with the other objects.
			transfertest.NoLeases(t, objects)
			source.mu.Lock()
			defer source.mu.Unlock()
			if source.alone != 1+2+2+1 {
				t.Errorf("%d requests for parts", source.alone)
			}
		})
	}
}
