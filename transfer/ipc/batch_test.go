//go:build cgo && linux

package ipc_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/transfertest"
)

// careless is a sink that gives some objects unsuitable places.
type careless struct {
	transfertest.Batching
	wrong map[int]func([]memory.Frame) []memory.Frame
}

func (c careless) Capabilities() transfer.SinkCapabilities {
	return transfer.SinkCapabilities{Batch: c}
}

func (c careless) PlaceBatch(ctx context.Context, first int, heads []transfer.Head, into []memory.Frame) (transfer.Placed, error) {
	placed, err := c.Batching.PlaceBatch(ctx, first, heads, into)
	frames := placed.Frames[len(into):]
	placed.Frames = into
	for i := range placed.Objects {
		n := len(heads[i].FrameBytes)
		own := frames[:n:n]
		if spoil := c.wrong[first+i]; spoil != nil {
			own = spoil(own)
		}
		placed.Frames = append(placed.Frames, own...)
		frames = frames[n:]
	}
	return placed, err
}

// A large batch of mostly similar objects. An object with an unsuitable place fails alone, a
// missing object is reported, and all others arrive, in whichever part of the batch they are
// copied.
func TestGPULargeBatch(t *testing.T) {
	const count, small = 1000, 4 << 10
	h, _ := newHeld(t, 64<<20)
	objects := transfertest.NewObjectsIn(transfertest.NewRoom(h))
	on := newIndex(t)
	objects.PublishTo(on)
	peer := lend(t, objects)
	all := pattern(small + count)
	frames := make([][][]byte, count)
	var refs []transfer.Ref
	for i := range count {
		refs = append(refs, ref(i))
		frames[i] = [][]byte{all[i : i+small]}
		switch {
		case i%97 == 5:
			frames[i] = append(frames[i], all[:i])
		case i%89 == 7:
			frames[i] = nil
		case i%83 == 11:
			frames[i] = [][]byte{{}}
		case i == 300:
			continue // no worker has it
		}
		objects.Put(ref(i), "x", frames[i]...)
	}
	shorter := func(f []memory.Frame) []memory.Frame {
		f[0].Bytes--
		return f
	}
	beyond := func(f []memory.Frame) []memory.Frame {
		f[0].Offset = 1 << 40
		return f
	}
	none := func([]memory.Frame) []memory.Frame { return nil }
	for name, wrong := range map[string]map[int]func([]memory.Frame) []memory.Frame{
		"good places": nil,
		"wrong ones":  {0: shorter, 130: beyond, 255: shorter, 512: shorter, 513: beyond, 901: shorter, 999: none},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReader(t, 64<<20, nil)
			sink := transfertest.NewSinkIn(r.room)
			if err := r.path.Fetch(t.Context(), peer, refs, careless{transfertest.Batching{Sink: sink}, wrong}); err != nil {
				t.Fatal(err)
			}
			for i := range refs {
				_, got, done, err := sink.Result(i)
				if bad := wrong[i] != nil || i == 300; !done || bad != (err != nil) {
					t.Errorf("object %d: done %v, %v", i, done, err)
					continue
				} else if bad {
					continue
				}
				for j, want := range frames[i] {
					if !bytes.Equal(got[j], want) {
						t.Errorf("frame %d of object %d has other bytes", j, i)
					}
				}
			}
		})
	}
	if s := on.Stats(); s.ReadBytes == 0 || s.Revoked > 0 {
		t.Errorf("%+v: it was not read", s)
	}
}
