package board

import (
	"sync/atomic"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// ShowArriving lets readers follow an object that is not shown, and that is being
// written where the frames say: see Show, which takes the same. Nothing has arrived yet.
func (b *Board) ShowArriving(k transfer.Ref, header []byte, frames []memory.Frame) bool {
	return b.enter(k, header, frames, 0)
}

// Arrived says that the first so many bytes of an object that is shown as arriving are in
// place, over its frames in their order. It never takes anything back.
func (b *Board) Arrived(k transfer.Ref, bytes uint64) { b.advance(k, min(bytes, whole-1)) }

// Whole says that an object that was shown as arriving is all there, and valid. It
// returns false if the object is not on the board.
func (b *Board) Whole(k transfer.Ref) bool { return b.advance(k, whole) }

func (b *Board) advance(k transfer.Ref, progress uint64) bool {
	tag := mix(uint64(k.Task), uint32(k.Generation))
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.words.list == nil {
		return false
	}
	_, entry, ok := b.find(k, tag)
	if !ok {
		return false
	}
	if at := entryAt(b.mask+1, entry) + progressAt; b.words.load(at) < progress {
		b.words.store(at, progress)
	}
	return true
}

// Watch tells how far one object has come that was found. It is good as long as the
// glance.
type Watch struct {
	view *View
	at   int
	seq  uint64
}

// Progress is how many bytes are in place, of an object that is whole as many as it has.
// It returns ok as false for ever once the object is not what was found any more: what
// was copied of it is to be thrown away, if it was not found to be whole before.
func (w Watch) Progress() (bytes uint64, isWhole, ok bool) {
	list := w.view.words.list[w.at : w.at+lineWords]
	bytes = atomic.LoadUint64(&list[progressAt])
	if atomic.LoadUint64(&list[0]) != w.seq {
		return 0, false, false
	}
	return bytes, bytes == whole, true
}

// FindArriving is Find for what is whole or arrives.
func (g Glance) FindArriving(k transfer.Ref, size uint64, f *Found) (o Object, w Watch, ok bool) {
	at, seq, o := g.view.find(k, size, f, true)
	return o, Watch{view: g.view, at: at, seq: seq}, at > 0
}
