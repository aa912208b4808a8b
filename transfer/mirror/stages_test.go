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

// parts returns regions of the far space with the given sizes.
func parts(x *tier, sizes ...uint64) (out []transfer.Region) {
	at := uint64(memory.HeaderBytes)
	for _, n := range sizes {
		out = append(out, transfer.Region{Space: x.far, Frame: memory.Frame{Offset: at, Bytes: n}})
		at += n + 11
	}
	return out
}

func TestStagedPartsLieOneBehindTheOther(t *testing.T) {
	m, x, _ := newMirror(t)
	if n := m.StageBytes(); n != 128<<10 {
		t.Errorf("%d bytes at a time, of a mirror of 1 MiB", n)
	}
	from := parts(x, 1, 4096, 70000)
	var want []byte
	for i, p := range from {
		content := bytes.Repeat([]byte{byte('a' + i)}, int(p.Frame.Bytes))
		if err := x.far.WriteFrom(p.Frame.Offset, content); err != nil {
			t.Fatal(err)
		}
		want = append(want, content...)
	}
	at, err := m.Stage(t.Context(), from)
	if err != nil {
		t.Fatal(err)
	}
	if at.Bytes != uint64(len(want)) || !bytes.Equal(m.Space().Bytes(at.Offset, at.Bytes), want) {
		t.Errorf("other bytes at %+v", at)
	}
	m.Unstage(at)
	if m.UsedBytes() != 0 || m.StagedBytes() != 0 {
		t.Errorf("%d bytes are taken, %d of them staged", m.UsedBytes(), m.StagedBytes())
	}
	x.err = errors.New("the device is lost")
	if _, err := m.Stage(t.Context(), from); !errors.Is(err, x.err) || m.UsedBytes() != 0 {
		t.Errorf("%v, %d bytes are taken", err, m.UsedBytes())
	}
	if _, err := m.Stage(t.Context(), []transfer.Region{{Space: m.Space(), Frame: memory.Frame{Bytes: 5}}}); !errors.Is(err, transfer.ErrUnreachable) {
		t.Errorf("what is not on the device: %v", err)
	}
}

// outcome is the result of a Stage.
type outcome struct {
	who int
	at  memory.Frame
	err error
}

// Stages use half of the mirror. Others wait until one of them ends, in their order.
func TestStagesWaitForOneAnotherInTheirOrder(t *testing.T) {
	m, x, _ := newMirror(t)
	var held []memory.Frame
	for range 4 { // 128 KiB each, half of 1 MiB
		at, err := m.Stage(t.Context(), parts(x, 128<<10))
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, at)
	}
	ended := make(chan outcome, 3)
	for i := range 3 {
		go func() {
			at, err := m.Stage(t.Context(), parts(x, 128<<10-uint64(i)))
			ended <- outcome{i, at, err}
		}()
		mirror.AwaitWaiting(m, i+1)
	}
	for i, at := range held[:3] {
		m.Unstage(at)
		o := <-ended
		if o.err != nil || o.who != i {
			t.Errorf("place %d went to %d, %v", i, o.who, o.err)
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
	first, err := m.Stage(t.Context(), parts(x, 128<<10))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan outcome, 2)
	for i, n := range []uint64{500 << 10, 64 << 10} { // the first of them has no room, the second has
		go func() {
			at, err := m.Stage([]context.Context{ctx, t.Context()}[i], parts(x, n))
			ended <- outcome{i, at, err}
		}()
		mirror.AwaitWaiting(m, i+1)
	}
	cancel()
	got := []outcome{<-ended, <-ended}
	slices.SortFunc(got, func(a, b outcome) int { return a.who - b.who })
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
	if _, err := m.Stage(t.Context(), parts(x, 64<<10)); !errors.Is(err, transfer.ErrUnreachable) {
		t.Errorf("got %v", err)
	}
	client.Release([]transfer.LeaseID{l.Lease})
	at, err := m.Stage(t.Context(), parts(x, 64<<10))
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
