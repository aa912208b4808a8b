package mirror_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/mirror"
	"github.com/millrace/millrace/transfer/transfertest"
)

func TestStagedPiecesLieWhereTheyShould(t *testing.T) {
	m, x, _ := newMirror(t)
	if n := m.StageBytes(); n != 128<<10 {
		t.Errorf("%d bytes at a time, of a mirror of 1 MiB", n)
	}
	pieces := []memory.Piece{{At: 0, Frame: memory.Frame{Offset: 5000, Bytes: 1}}, {At: 16, Frame: memory.Frame{Offset: 9000, Bytes: 4096}}, {At: 4112, Frame: memory.Frame{Offset: 1 << 20, Bytes: 70000}}}
	content := func(i int) []byte { return bytes.Repeat([]byte{byte('a' + i)}, int(pieces[i].Bytes)) }
	for i, p := range pieces {
		if err := x.far.WriteFrom(p.Offset, content(i)); err != nil {
			t.Fatal(err)
		}
	}
	at, err := m.Stage(t.Context(), 75000, x.far, pieces)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range pieces {
		if !bytes.Equal(m.Space().Bytes(at.Offset+p.At, p.Bytes), content(i)) {
			t.Errorf("other bytes in place of piece %d", i)
		}
	}
	if at.Bytes != 75000 || m.StagedBytes() != 75008 {
		t.Errorf("a place of %d bytes occupies %d", at.Bytes, m.StagedBytes())
	}
	m.Unstage(at)
	if m.UsedBytes() != 0 || m.StagedBytes() != 0 {
		t.Errorf("%d bytes are taken, %d of them staged", m.UsedBytes(), m.StagedBytes())
	}
	x.err = errors.New("the device is lost")
	if _, err := m.Stage(t.Context(), 75000, x.far, pieces); !errors.Is(err, x.err) || m.UsedBytes() != 0 {
		t.Errorf("%v, %d bytes are taken", err, m.UsedBytes())
	}
	if _, err := m.Stage(t.Context(), 5, m.Space(), nil); !errors.Is(err, transfer.ErrUnreachable) {
		t.Errorf("what is not on the device: %v", err)
	}
}

// outcome is the result of a Stage.
type outcome struct {
	waiter int
	at     memory.Frame
	err    error
}

// Stages use half of the mirror. Others wait until one of them ends, in their order.
func TestStagesWaitForOneAnotherInTheirOrder(t *testing.T) {
	m, x, _ := newMirror(t)
	var held []memory.Frame
	for range 4 { // 128 KiB each, half of 1 MiB
		at, err := m.Stage(t.Context(), 128<<10, x.far, nil)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, at)
	}
	ended := make(chan outcome, 3)
	for i := range 3 {
		go func() {
			at, err := m.Stage(t.Context(), 128<<10-uint64(i), x.far, nil)
			ended <- outcome{i, at, err}
		}()
		mirror.AwaitWaiting(m, i+1)
	}
	for i, at := range held[:3] {
		m.Unstage(at)
		o := <-ended
		if o.err != nil || o.waiter != i {
			t.Errorf("place %d went to %d, %v", i, o.waiter, o.err)
		}
		held[i] = o.at
	}
	for _, at := range held {
		m.Unstage(at)
	}
	if m.UsedBytes() != 0 {
		t.Errorf("%d bytes are taken", m.UsedBytes())
	}
}

// One that gives up lets those behind it through.
func TestStageThatGivesUpWaiting(t *testing.T) {
	m, x, _ := newMirror(t)
	first, err := m.Stage(t.Context(), 128<<10, x.far, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan outcome, 2)
	for i, n := range []uint64{500 << 10, 64 << 10} { // the first of them has no room, the second has
		go func() {
			at, err := m.Stage([]context.Context{ctx, t.Context()}[i], n, x.far, nil)
			ended <- outcome{i, at, err}
		}()
		mirror.AwaitWaiting(m, i+1)
	}
	cancel()
	got := []outcome{<-ended, <-ended}
	slices.SortFunc(got, func(a, b outcome) int { return a.waiter - b.waiter })
	if !errors.Is(got[0].err, context.Canceled) || got[1].err != nil {
		t.Errorf("%v, %v", got[0].err, got[1].err)
	}
	m.Unstage(first)
	m.Unstage(got[1].at)
	if m.UsedBytes() != 0 || m.StagedBytes() != 0 {
		t.Errorf("%d bytes are taken, %d of them staged", m.UsedBytes(), m.StagedBytes())
	}
}

// Clients may keep what they lease for ever, so no stage waits for them.
func TestStagesDoNotWaitForClients(t *testing.T) {
	m, x, objects := newMirror(t)
	objects.Put(ref(1), "x", make([]byte, 1<<20-4096))
	client := m.Source(objects)
	l := client.Lease(transfer.Reader{}, []transfer.Ref{ref(1)}, time.Minute)[0]
	if l.Err != nil {
		t.Fatal(l.Err)
	}
	if _, err := m.Stage(t.Context(), 64<<10, x.far, nil); !errors.Is(err, transfer.ErrUnreachable) {
		t.Errorf("got %v", err)
	}
	client.Release([]transfer.LeaseID{l.Lease})
	at, err := m.Stage(t.Context(), 64<<10, x.far, nil)
	if err != nil {
		t.Fatal(err)
	}
	m.Unstage(at)
}

func TestSmallMirrorStagesNothing(t *testing.T) {
	x := &tier{host: make([]byte, 4<<20), far: transfertest.NewFar(t, 1<<20)}
	m, err := mirror.New(x, 0, 16<<10)
	if err != nil {
		t.Fatal(err)
	}
	if n := m.StageBytes(); n != 0 {
		t.Errorf("%d bytes at a time", n)
	}
}
