package grpcpath_test

import (
	"bytes"
	"fmt"
	"testing"

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
