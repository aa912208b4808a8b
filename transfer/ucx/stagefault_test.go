//go:build cgo && linux

package ucx_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda/cudatest"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/transfertest"
	"github.com/millrace/millrace/transfer/ucx"
)

// twoWorkers returns the source and the reader of a pair, both in this process.
func twoWorkers(t *testing.T, p pair) (source, reader *worker) {
	t.Helper()
	source = newWorkerThatServes(t, p, transfertest.Patience, nil)
	return source, newWorkerThatServes(t, pair{tls: p.tls, source: p.reader}, transfertest.Patience, nil)
}

// allSlotsAreFree waits until no slot of a context's rings is in use. Its peers have given all of
// them back then.
func allSlotsAreFree(t *testing.T, c *ucx.Context) {
	t.Helper()
	within(t, transfertest.Patience, "the return of all slots", func() {
		for {
			out, in, all := c.FreeSlots()
			if out == all && in == all || t.Context().Err() != nil {
				return
			}
			<-time.After(time.Millisecond) // nothing reports the return
		}
	})
}

// write writes p at an offset of a space.
func write(t *testing.T, space memory.Space, at uint64, p []byte) {
	t.Helper()
	if staged, ok := space.(memory.Staged); ok {
		if err := staged.WriteFrom(at, p); err != nil {
			t.Fatal(err)
		}
		return
	}
	copy(space.Bytes(at, uint64(len(p))), p)
}

// read returns n bytes at an offset of a space.
func read(t *testing.T, space memory.Space, at, n uint64) []byte {
	t.Helper()
	r, ok := space.(memory.Reader)
	if !ok {
		return space.Bytes(at, n)
	}
	p := make([]byte, n)
	if err := r.ReadInto(at, p); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestNothingIsWrittenAfterAFetchThatWasGivenUp cancels fetches at random moments and uses their
// places for other bytes at once. Then other fetches go through the same slots and streams, so that
// whatever was still in progress has ended.
func TestNothingIsWrittenAfterAFetchThatWasGivenUp(t *testing.T) {
	eachPair(t, [][2]place{{onHost, onHost}, {onGPU, onGPU}, {onHost, onGPU}, {onOpenGPU, onOpenGPU}}, func(t *testing.T, p pair) {
		t.Helper()
		source, reader := twoWorkers(t, p)
		var refs []transfer.Ref
		for i := range 40 {
			n := 64 << 10
			if i%13 == 0 {
				n = 9 << 20
			}
			source.objects.Put(refOf(i), "x", stamped(i, n))
			refs = append(refs, refOf(i))
		}
		if p.reader != onHost && fake != nil {
			fake.DelayMicros.Store(100)
			defer fake.DelayMicros.Store(0)
		}
		random := rand.New(rand.NewPCG(1, 2))
		gaveUp := 0
		rounds := 20
		if testing.Short() {
			rounds = 5
		}
		for range rounds {
			reader.room.Reset()
			begin, err := reader.room.Take(slabBytes / 2) // as newWorkerThatServes does
			if err != nil {
				t.Fatal(err)
			}
			from := begin.Frame.End()
			ctx, cancel := context.WithCancel(t.Context())
			sink, at, after := transfertest.NewSinkIn(reader.room), random.IntN(len(refs)), random.IntN(1000)
			sink.PlaceHook = func(_ context.Context, index int, _ transfer.Head) error {
				if index == at {
					time.AfterFunc(time.Duration(after)*time.Microsecond, cancel)
				}
				return nil
			}
			err = reader.path.Fetch(ctx, source.peer, refs, sink)
			cancel()
			if err != nil {
				gaveUp++
			}
			if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, transfer.ErrPeerLost) {
				t.Fatal(err)
			}
			end, err := reader.room.Take(0)
			if err != nil {
				t.Fatal(err)
			}
			mine := bytes.Repeat([]byte{0x5a}, int(end.Frame.Offset-from))
			write(t, reader.room.Space(), from, mine)
			for range 2 {
				others := transfertest.NewSinkIn(reader.room)
				if err := reader.path.Fetch(t.Context(), source.peer, refs, others); err != nil && !errors.Is(err, transfer.ErrPeerLost) {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(read(t, reader.room.Space(), from, uint64(len(mine))), mine) {
				t.Error("a fetch wrote to its places after it had returned")
			}
		}
		t.Logf("%d of %d fetches were given up", gaveUp, rounds)
		for _, w := range []*worker{source, reader} {
			allSlotsAreFree(t, w.context)
		}
		transfertest.NoLeases(t, source.objects)
	})
}

// TestACopyThatFailsFailsItsObjectsOnly: the driver refuses a copy to or from a ring. The objects
// of that copy fail; later fetches succeed.
func TestACopyThatFailsFailsItsObjectsOnly(t *testing.T) {
	if onRealGPU() {
		return // a real driver fails no copy at will
	}
	for side, call := range map[string]string{"source": "cuMemcpyDtoHAsync_v2", "reader": "cuMemcpyHtoDAsync_v2"} {
		t.Run(side, func(t *testing.T) {
			source, reader := twoWorkers(t, pair{transports["cma"], onGPU, onGPU})
			want := stamped(1, 9<<20)
			source.objects.Put(refOf(1), "x", want)
			if err := reader.fetchOne(t, source, want, nil); err != nil {
				t.Fatal(err)
			}
			fake.Fail(call, cudatest.OutOfMemory, 0, 1)
			err := reader.fetchOne(t, source, want, nil)
			if err == nil || !strings.Contains(err.Error(), "out of memory") || fake.Failing() {
				t.Errorf("the copy that failed: %v", err)
			}
			reader.room.Reset()
			if err := reader.fetchOne(t, source, want, nil); err != nil {
				t.Errorf("the next fetch: %v", err)
			}
			for _, w := range []*worker{source, reader} {
				allSlotsAreFree(t, w.context)
			}
			transfertest.NoLeases(t, source.objects)
		})
	}
}

// TestBytesReachTheGPUBeforeTheObjectIsDone: a network card reports the end of a write before
// the GPU sees the bytes, so the driver is asked to wait for them. If it fails, the object is not
// there.
func TestBytesReachTheGPUBeforeTheObjectIsDone(t *testing.T) {
	if onRealGPU() {
		return // a real driver fails no call at will
	}
	for _, p := range []pair{{transports["cma"], onHost, onOpenGPU}, {transports["cma"], onHost, onGPU}} {
		t.Run(p.reader.String(), func(t *testing.T) {
			source, reader := twoWorkers(t, p)
			want := stamped(1, 100<<10)
			source.objects.Put(refOf(1), "x", want)
			fake.Flushes.Store(0)
			if err := reader.fetchOne(t, source, want, nil); err != nil {
				t.Fatal(err)
			}
			if direct := p.reader == onOpenGPU; (fake.Flushes.Swap(0) > 0) != direct {
				t.Errorf("the driver was asked to wait for the bytes: %v, want %v", !direct, direct)
			} else if !direct {
				return
			}
			fake.Fail("cuFlushGPUDirectRDMAWrites", cudatest.OutOfMemory, 0, 1)
			reader.room.Reset()
			if err := reader.fetchOne(t, source, want, nil); err == nil || !strings.Contains(err.Error(), "on their way to the GPU") || fake.Failing() {
				t.Errorf("a wait that failed: %v", err)
			}
			reader.room.Reset()
			if err := reader.fetchOne(t, source, want, nil); err != nil {
				t.Errorf("the next fetch: %v", err)
			}
		})
	}
}

// TestAStoppedReaderDoesNotKeepSlots: a reader that is stopped may have slots of the source's ring.
// The source takes them back after a while, and serves other readers meanwhile.
func TestAStoppedReaderDoesNotKeepSlots(t *testing.T) {
	if elsewhere != nil {
		return // readers run on this host
	}
	eachPair(t, [][2]place{{onGPU, onGPU}}, func(t *testing.T, p pair) {
		t.Helper()
		t.Parallel() // it waits for seconds
		source, other := twoWorkers(t, p)
		want := stamped(1, 100<<20)
		source.objects.Put(refOf(1), "x", want)
		stopped, _ := startReading(t, p, source.peer.Address)
		if err := stopped.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			other.room.Reset()
			if err := other.fetchOne(t, source, want, nil); err != nil {
				t.Error(err)
			}
		}
		allSlotsAreFree(t, source.context)
		if err := stopped.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		other.room.Reset()
		if err := other.fetchOne(t, source, want, nil); err != nil {
			t.Error(err)
		}
	})
}

// numbers returns a message with numbers of 8 bytes.
func numbers(n ...uint64) (b []byte) {
	for _, x := range n {
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	return b
}

// TestMessagesOfStagingThatMakeNoSenseEndTheirConnection: the source ends the connection of the
// reader that sent them, and keeps serving others.
func TestMessagesOfStagingThatMakeNoSenseEndTheirConnection(t *testing.T) {
	if elsewhere != nil {
		return
	}
	source, honest := twoWorkers(t, pair{transports["cma"], onGPU, onGPU})
	want := stamped(1, 9<<20)
	source.objects.Put(refOf(1), "x", want)
	hostile := newWorkerThatServes(t, pair{tls: transports["cma"]}, transfertest.Patience, nil)
	size := source.room.Space().Size()
	for name, m := range map[string]struct {
		kind, count int
		payload     []byte
		times       int
	}{
		"no range":                       {ucx.MessageStage, 0, nil, 1},
		"an empty range":                 {ucx.MessageStage, 1, numbers(4096, 0), 1},
		"a range that is cut off":        {ucx.MessageStage, 1, numbers(4096), 1},
		"a range outside of the slab":    {ucx.MessageStage, 1, numbers(size-1, 2), 1},
		"a range that wraps around":      {ucx.MessageStage, 1, numbers(^uint64(0)-100, 200), 1},
		"more than a slot":               {ucx.MessageStage, 2, numbers(4096, memory.StageBytes, 4096, 1), 1},
		"a sum that wraps around":        {ucx.MessageStage, 2, numbers(4096, 1<<63, 4096, 1<<63), 1},
		"more ranges than a message has": {ucx.MessageStage, 1 << 31, numbers(4096, 1), 1},
		"too many requests":              {ucx.MessageStage, 1, numbers(4096, 1), 9},
		"a slot that it does not have":   {ucx.MessageUnstage, 0, []byte{0, 0, 0, 0}, 1},
		"a slot that does not exist":     {ucx.MessageUnstage, 0, []byte{255, 255, 255, 255}, 1},
		"no slot":                        {ucx.MessageUnstage, 0, nil, 1},
		"a read of the slab":             {ucx.MessageRead, 0, numbers(4096, 8), 1},
		"a read of a slot that it lacks": {ucx.MessageRead, 1, numbers(memory.HeaderBytes, 8), 1},
		"a read beyond the ring":         {ucx.MessageRead, 1, numbers(1<<40, 8), 1},
		"a read of an unknown memory":    {ucx.MessageRead, 7, numbers(4096, 8), 1},
	} {
		t.Run(name, func(t *testing.T) {
			readers := source.context.Readers()
			if _, err := hostile.path.Connect(t.Context(), source.peer); err != nil {
				t.Fatal(err)
			}
			hostile.context.SendToSources(m.kind, m.count, m.payload, m.times)
			within(t, transfertest.Patience, "the end of the connection", func() {
				for source.context.Readers() > readers && t.Context().Err() == nil {
					<-time.After(time.Millisecond)
				}
			})
			hostile.path.Forget(source.peer.Address) // it need not know yet
			honest.room.Reset()
			if err := honest.fetchOne(t, source, want, nil); err != nil {
				t.Errorf("another reader: %v", err)
			}
			allSlotsAreFree(t, source.context)
		})
	}
}

// TestAnswersOfStagingThatMakeNoSenseEndTheirConnection: a source names a slot outside of its ring,
// or says nothing. The reader gives the connection up and reads nothing there.
func TestAnswersOfStagingThatMakeNoSenseEndTheirConnection(t *testing.T) {
	if elsewhere != nil || onRealGPU() {
		return // the fake driver holds the honest answer back
	}
	source, reader := twoWorkers(t, pair{transports["cma"], onGPU, onHost})
	want := stamped(1, 9<<20)
	source.objects.Put(refOf(1), "x", want)
	slot := func(offset uint64, slot uint32) []byte {
		return binary.LittleEndian.AppendUint32(numbers(offset), slot)
	}
	for name, payload := range map[string][]byte{
		"nothing":               {},
		"the header page":       slot(0, 0),
		"beyond the ring":       slot(1<<40, 0),
		"across its end":        slot(memory.HeaderBytes+16*memory.StageBytes-8, 0),
		"an offset that wraps":  slot(^uint64(0)-8, 0),
		"a slot that is cut":    numbers(memory.HeaderBytes)[:7],
		"a slot without number": numbers(memory.HeaderBytes),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := reader.path.Connect(t.Context(), source.peer); err != nil {
				t.Fatal(err)
			}
			fake.Hold.Store(1)
			defer fake.Hold.Store(0)
			var wait sync.WaitGroup
			reader.room.Reset()
			err := reader.fetchOne(t, source, want, func() {
				wait.Go(func() {
					for source.context.Readers() > 0 && t.Context().Err() == nil {
						source.context.AnswerStagings(ucx.MessageStaged, 1, payload)
					}
				})
			})
			wait.Wait()
			if !errors.Is(err, transfer.ErrProtocol) && !errors.Is(err, transfer.ErrPeerLost) {
				t.Errorf("got %v", err)
			}
			fake.Hold.Store(0)
			reader.room.Reset()
			if err := reader.fetchOne(t, source, want, nil); err != nil {
				t.Errorf("over a new connection: %v", err)
			}
			allSlotsAreFree(t, source.context)
		})
	}
}
