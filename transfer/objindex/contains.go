package objindex

import (
	"sync/atomic"

	"github.com/millrace/millrace/transfer"
)

// Contains reports whether an object was in the index a moment ago. It takes no slot, so the object
// may be gone when Contains returns.
func (r *Reader) Contains(k transfer.Ref) bool {
	w := &r.words
	tag := mix(uint64(k.Task), uint32(k.Generation))
	one, two := buckets(tag, r.mask)
	for _, bucket := range [2]uint64{one, two} {
		index := indexAt(bucket)
		for i := range ways {
			number, maybe := entryOf(w.load(index+i), tag, (r.mask+1)*ways)
			if !maybe {
				continue
			}
			entry := w.list[entryAt(r.mask+1, number):]
			if atomic.LoadUint64(&entry[1]) == uint64(k.Task) && uint32(atomic.LoadUint64(&entry[2])) == uint32(k.Generation) &&
				atomic.LoadUint64(&entry[progressAt]) == whole {
				return true
			}
		}
	}
	return false
}
