package objindex

import (
	"sync/atomic"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// PublishArriving publishes an object that is still being written to the given frames, so that
// readers can follow it. The arguments are those of Publish. The initial progress is 0 bytes.
func (x *Index) PublishArriving(k transfer.Ref, header []byte, frames []memory.Frame) bool {
	return x.write(k, header, frames, 0)
}

// SetProgress sets the progress of an arriving object: the first bytes are in place, counted over
// its frames in order. The progress never decreases.
func (x *Index) SetProgress(k transfer.Ref, bytes uint64) { x.advance(k, min(bytes, whole-1)) }

// Complete marks an arriving object as complete and valid. It returns false if the object is not in
// the index.
func (x *Index) Complete(k transfer.Ref) bool { return x.advance(k, whole) }

func (x *Index) advance(k transfer.Ref, progress uint64) bool {
	tag := mix(uint64(k.Task), uint32(k.Generation))
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.words.list == nil {
		return false
	}
	_, entry, ok := x.find(k, tag)
	if !ok {
		return false
	}
	if at := entryAt(x.mask+1, entry) + progressAt; x.words.load(at) < progress {
		x.words.store(at, progress)
	}
	return true
}

// Watch observes the progress of one found object. It is valid as long as its ReadGuard.
type Watch struct {
	reader *Reader
	at     int
	seq    uint64
}

// Progress returns the number of bytes that are in place. If isWhole is true, all of them are, and
// bytes has no meaning. ok is false, for ever, once the entry is no longer the one that was found;
// a follower then discards its copy, unless the object was found whole before.
func (w Watch) Progress() (bytes uint64, isWhole, ok bool) {
	list := w.reader.words.list[w.at : w.at+lineWords]
	bytes = atomic.LoadUint64(&list[progressAt])
	if atomic.LoadUint64(&list[0]) != w.seq {
		return 0, false, false
	}
	return bytes, bytes == whole, true
}

// FindArriving is Find for objects that are whole or arriving.
func (g ReadGuard) FindArriving(k transfer.Ref, size uint64, f *Found) (o Object, w Watch, ok bool) {
	o, at, seq := g.find(k, size, f, true)
	return o, Watch{reader: g.reader, at: at, seq: seq}, at > 0
}
