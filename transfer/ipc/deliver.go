package ipc

import (
	"fmt"

	"github.com/millrace/millrace/transfer"
)

// deliver reports to the sink the objects whose copies are over. If it returns an error, the fetch
// ends.
func (f *fetch) deliver(ended []span) error {
	if len(ended) == 0 {
		return nil
	}
	held := f.held(ended)
	var lost error
	received := uint64(0)
	for _, s := range ended {
		switch {
		case s.err != nil:
			for i := s.first; i < s.first+s.count; i++ {
				f.sink.Done(f.index(i), fmt.Errorf("%s: %w", f.ref(i), s.err))
			}
		case held.all(s):
			received += s.bytes
			f.done(s.first, s.count)
		default:
			for i := s.first; i < s.first+s.count; i++ {
				switch {
				case held.one(i - s.first):
					received += f.batch.Objects[i].Head.Bytes()
					f.done(i, 1)
				case lost == nil:
					lost = fmt.Errorf("%s: %w: its lease did not hold", f.ref(i), transfer.ErrPeerLost)
				}
			}
		}
		held = held.after(s)
	}
	f.path.config.Received(int(received))
	return lost
}

// done reports objects as received.
func (f *fetch) done(first, count int) {
	if count > 1 && f.together(first, count) || count == 1 && f.batcher != nil {
		f.batcher.DoneBatch(f.index(first), count)
		return
	}
	for i := first; i < first+count; i++ {
		f.sink.Done(f.index(i), nil)
	}
}

// validity says for ended objects whether their leases were valid to the end. The objects under one
// epoch guard share one answer.
type validity struct {
	guard bool
	each  []bool
}

// held ends the leases of a batch, or checks the epoch guard.
func (f *fetch) held(ended []span) validity {
	if f.batch == nil {
		return validity{guard: f.guard.Held()}
	}
	list := f.list[:0]
	for _, s := range ended {
		list = f.span(list, s.first, s.count)
	}
	return validity{each: f.batch.End(list)}
}

// one returns the answer for the nth remaining object.
func (v validity) one(n int) bool {
	if n < len(v.each) {
		return v.each[n]
	}
	return v.guard
}

func (v validity) all(s span) bool {
	if v.each == nil {
		return v.guard
	}
	for i := range s.count {
		if !v.one(i) {
			return false
		}
	}
	return true
}

// after returns the answers for the objects behind a span.
func (v validity) after(s span) validity {
	v.each = v.each[min(s.count, len(v.each)):]
	return v
}
