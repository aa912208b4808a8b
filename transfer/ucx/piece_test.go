package ucx

import (
	"errors"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/memory"
)

// wants makes a loop want reads of the given sizes, each of a batch of its own. It returns the
// number of batches that have ended.
func wants(l *loop, n *conn, cancelled *atomic.Bool, sizes ...uint64) *int {
	ended := new(int)
	at := n.base
	for _, size := range sizes {
		b := &batch{done: func(*loop, error) { *ended++ }, cancelled: cancelled, moved: new(atomic.Uint64)}
		l.want(n, b, []*read{{batch: b, local: 1<<50 + at, remote: at, length: size}})
		at += size
	}
	return ended
}

// TestPiecesHaveEachByteOnce: pieces are cut from reads of any sizes. Each byte is in one part,
// parts are aligned and do not overlap, and no piece is larger than a slot.
func TestPiecesHaveEachByteOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, n := &loop{}, &conn{base: 1 << 30, bytes: 1 << 40}
		sizes := rapid.SliceOfN(rapid.OneOf(rapid.Uint64Range(1, 5000), rapid.Uint64Range(1, 20<<20)), 1, 200).Draw(t, "sizes")
		ended := wants(l, n, new(atomic.Bool), sizes...)
		seen := make(map[uint64]uint64) // by address at the source: the bytes from there on
		for {
			p := l.form(n)
			if p == nil {
				break
			}
			end := uint64(0)
			for _, x := range p.parts {
				if x.at%partAlignment != 0 || x.at < end || x.read.length == 0 || x.read.local-x.read.remote != 1<<50 {
					t.Fatalf("a part of %d bytes at %d, after one that ends at %d", x.read.length, x.at, end)
				}
				end = x.at + x.read.length
				seen[x.read.remote] = x.read.length
			}
			if end != p.bytes || end > memory.StageBytes || len(p.parts) > maxParts {
				t.Fatalf("a piece of %d bytes with %d parts, which end at %d", p.bytes, len(p.parts), end)
			}
			l.finish(p, nil)
		}
		at := n.base
		for i, size := range sizes {
			for end := at + size; at < end; {
				bytes := seen[at]
				if bytes == 0 || at+bytes > end {
					t.Fatalf("read %d: %d bytes at %#x, which ends at %#x", i, bytes, at, end)
				}
				delete(seen, at)
				at += bytes
			}
		}
		if len(seen) > 0 || n.wanted != 0 || *ended != len(sizes) {
			t.Fatalf("%d parts of nothing, %d bytes are still wanted, %d of %d reads have ended", len(seen), n.wanted, *ended, len(sizes))
		}
	})
}

// TestManySmallReadsTravelTogether: 1,000 reads of 64 KiB need few pieces, also if the first of
// them begin before the others are wanted.
func TestManySmallReadsTravelTogether(t *testing.T) {
	l, n := &loop{}, &conn{route: route{stagedReader: true}}
	count := 0
	l.inFree = nil // no piece goes on, so that maxPieces of them stay
	for range 1000 {
		wants(l, n, new(atomic.Bool), 64<<10)
		l.beginPieces(n)
	}
	for len(n.pieces) > 0 {
		count += len(n.pieces)
		for _, p := range append([]*piece(nil), n.pieces...) {
			l.queued = nil
			l.finish(p, nil)
		}
		l.beginPieces(n)
	}
	if count > 40 {
		t.Errorf("%d pieces for 1,000 reads of 64 KiB", count)
	}
}

// TestAFetchThatIsGivenUpDoesNotWaitForItsPieces: only the copy to its regions must end.
func TestAFetchThatIsGivenUpDoesNotWaitForItsPieces(t *testing.T) {
	l, n := &loop{}, &conn{route: route{stagedReader: true}}
	var mine, other atomic.Bool
	ended, others := wants(l, n, &mine, 100, 200, 30<<20), wants(l, n, &other, 300)
	l.beginPieces(n)
	mine.Store(true)
	l.drop(n, &mine)
	if *ended != 3 || *others != 0 || n.wanted != 0 {
		t.Errorf("%d of 3 reads have ended, %d of another fetch, %d bytes are wanted", *ended, *others, n.wanted)
	}
	for _, p := range append([]*piece(nil), n.pieces...) {
		l.finish(p, nil)
	}
	if *ended != 3 || *others != 1 {
		t.Errorf("in the end, %d of 3 reads have ended, and %d of 1 of another fetch", *ended, *others)
	}
	ended = wants(l, n, &mine, 10<<20)
	mine.Store(false)
	l.beginPieces(n)
	n.pieces[0].state = pieceStores
	mine.Store(true)
	l.drop(n, &mine)
	if *ended != 0 {
		t.Error("a fetch has ended whose bytes are being copied to its regions")
	}
	l.finish(n.pieces[0], nil)
	if *ended != 1 {
		t.Error("the copy has ended, and the fetch has not")
	}
}

// TestAnAnswerWithAWrongSlotIsRefused: a slot must lie in the ring that was offered.
func TestAnAnswerWithAWrongSlotIsRefused(t *testing.T) {
	const bytes = memory.HeaderBytes + 2*memory.StageBytes
	for _, x := range []struct {
		offset uint64
		good   bool
	}{
		{memory.HeaderBytes, true}, {memory.HeaderBytes + memory.StageBytes, true},
		{0, false}, {memory.HeaderBytes + memory.StageBytes + 1, false}, {^uint64(0) - 100, false},
	} {
		p := &piece{conn: &conn{offer: offer{ringBytes: bytes}}}
		if err := p.gotSlot(answer{count: 1, payload: append(numbers(x.offset), 1, 0, 0, 0)}); (err == nil) != x.good {
			t.Errorf("offset %#x: %v", x.offset, err)
		}
	}
	p := &piece{conn: &conn{}}
	if p.gotSlot(answer{count: 1, payload: make([]byte, 11)}) == nil || p.gotSlot(answer{payload: []byte("no")}) == nil {
		t.Error("an answer without a slot was accepted")
	}
}

// TestPiecesEndWithTheirConnection: also those that wait for a slot, and what is in no piece yet.
func TestPiecesEndWithTheirConnection(t *testing.T) {
	l := &loop{c: &Context{config: Config{}.withDefaults()}}
	n := &conn{route: route{stagedReader: true}}
	ended := wants(l, n, new(atomic.Bool), 100, 60<<20, 30<<20)
	l.beginPieces(n)
	if len(l.queued) == 0 || *ended != 0 {
		t.Fatalf("%d pieces wait for a slot, %d reads have ended", len(l.queued), *ended)
	}
	l.fail(n, errors.New("the endpoint failed"))
	if *ended != 3 || len(n.pieces)+len(l.queued) != 0 {
		t.Errorf("%d of 3 reads have ended, %d pieces are left, %d wait for a slot", *ended, len(n.pieces), len(l.queued))
	}
}
