package journal

import (
	"crypto/sha256"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
)

// batch is the records that become durable together.
type batch struct {
	codec codec
	began time.Time // the time of its first record
	last  uint64    // the last record of it
	// records counts them.
	records int
	// snapshot begins with this batch; nil: none does. anew means that from this batch on, the log
	// names all values anew.
	snapshot *Snapshot
	anew     bool
	// attempt is the attempt to write it that is in progress, or else the next one. After the last
	// one, it is that.
	attempt *attempt
	// form and packed are the records as they are written; nil: the batch is not prepared. placed
	// are the places of the values that it is the first one to name.
	form   byte
	packed []byte
	placed []placed
	// once is done when the batch is prepared, and room is where its records are compressed to.
	once sync.Once
	room []byte
}

// buffers are the memory of a batch.
type buffers struct{ records, packed []byte }

// attempt is an attempt to write a batch. done is closed at its end, and err is its outcome.
type attempt struct {
	done chan struct{}
	err  error
}

func newBatch() *batch { return &batch{attempt: &attempt{done: make(chan struct{})}} }

// fill begins another batch to be filled, and returns the one before. The caller holds the mutex.
func (j *Journal) fill() *batch {
	before := j.filling
	j.filling = newBatch()
	j.filling.codec.data, j.filling.room = j.spare.records, j.spare.packed
	j.spare = buffers{}
	return before
}

// keep keeps the memory of a batch that was written. The caller holds the mutex.
func (j *Journal) keep(b *batch) {
	if cap(b.codec.data) <= keptBuffer && cap(b.room) <= keptBuffer {
		j.spare = buffers{b.codec.data[:0], b.room[:0]}
	}
}

// append adds a record.
func (b *batch) append(at time.Time, r Record) {
	nanos := at.UnixNano()
	whole(&b.codec, &nanos)
	b.codec.code(r)
	b.records++
}

// body returns what is written of a batch that is prepared.
func (b *batch) body() [][]byte {
	form, table := []byte{b.form}, codec{}
	if len(b.placed) > 0 {
		form[0] |= formValues
		list(&table, &b.placed, (*codec).placed)
	}
	return [][]byte{form, table.data, b.packed}
}

// full reports whether a batch is large enough to be written at once.
func (b *batch) full() bool { return len(b.codec.data) > fullBatch || b.codec.largeSize > fullValues }

// end tells the waiters of a batch the outcome of an attempt to write it.
func (b *batch) end(err error) {
	select {
	case <-b.attempt.done:
	default:
		b.attempt.err = err
		close(b.attempt.done)
	}
}

// prepare hashes the long values of a batch, and compresses its records.
func (b *batch) prepare(encoder *zstd.Encoder) {
	b.once.Do(func() {
		for i := range b.codec.large {
			l := &b.codec.large[i]
			l.hash = sha256.Sum256(l.value)
			copy(b.codec.data[l.offset:], l.hash[:])
		}
		b.form, b.packed, b.room = pack(b.codec.data, encoder, b.room)
	})
}
