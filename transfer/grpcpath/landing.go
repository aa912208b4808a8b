package grpcpath

import (
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

const (
	// landAlone is the size from which an object is stored as soon as it has come. Smaller ones
	// are stored together, by one copy for a whole buffer: a copy of its own and the wait for it
	// take the GPU about 20 µs, in which a network brings more than 64 KiB.
	landAlone = 1 << 20
	// landWithin is how long an object that has come waits for others.
	landWithin = time.Millisecond
)

// landing is the buffers of a stream whose data belongs into a space that the processor cannot
// address, and the objects in them. Memory that it can address needs no buffers.
type landing struct {
	// flow stages the data for space. It is nil until data for a staged space has come.
	flow  *memory.Inflow
	space memory.Space
	// stored is called for objects that have arrived, when their bytes are in their regions; with
	// an error, they will not be.
	stored func(objects []uint32, err error)
	// arrived are the objects of which all bytes have come, but for which stored was not called
	// yet. bytes is their size, since the time when the first of them had come.
	arrived []uint32
	bytes   uint64
	since   time.Time
}

// room returns the memory for the first bytes of a region; for all of them if the CPU can address
// the space. REQUIRES: the memory that it returned before has been filled.
func (l *landing) room(region transfer.Region) ([]byte, error) {
	staged, ok := region.Space.(memory.Staged)
	if !ok {
		return region.Bytes(), nil
	}
	if l.flow == nil || l.space != region.Space {
		if err := l.flush(); err != nil {
			return nil, err
		}
		l.flow, l.space = memory.NewInflow(staged), region.Space
	}
	return l.flow.Room(region.Frame.Offset, region.Frame.Bytes)
}

// arrive says that all bytes of some objects have come; bytes returns the size of one. Small
// objects wait until a buffer is full or the first of them has waited for landWithin; then, or at
// the next flush, stored is called.
func (l *landing) arrive(objects []uint32, bytes func(index uint32) uint64) {
	if len(l.arrived) == 0 {
		l.bytes, l.since = 0, time.Now()
	}
	l.arrived = append(l.arrived, objects...)
	alone := false
	for _, index := range objects {
		n := bytes(index)
		l.bytes += n
		alone = alone || n >= landAlone
	}
	if !l.holds() || alone || l.bytes >= memory.StageBytes || time.Since(l.since) >= landWithin {
		_ = l.flush() // stored gets the error
	}
}

// flush returns when all data that has come is in its regions. It calls stored for the objects that
// have arrived. After an error, nothing writes to the regions any more.
func (l *landing) flush() error {
	var err error
	if l.flow != nil {
		if err = l.flow.Flush(); err != nil {
			l.close()
		}
	}
	l.settle(err)
	return err
}

// fail drops data that was not flushed, and fails the objects that have arrived: the space cannot
// be written.
func (l *landing) fail(err error) {
	l.close()
	l.settle(err)
}

func (l *landing) settle(err error) {
	if arrived := l.arrived; len(arrived) > 0 {
		l.arrived = l.arrived[:0]
		l.stored(arrived, err)
	}
}

// holds says whether buffers are in use.
func (l *landing) holds() bool { return l.flow != nil && l.flow.Holds() }

// rooms returns memory for the first bytes of some regions, in their order: of the first one, and
// of those behind it whose memory is in the same buffer.
// REQUIRES: as for room.
func (l *landing) rooms(regions []transfer.Region) ([][]byte, error) {
	first, err := l.room(regions[0])
	if err != nil {
		return nil, err
	}
	rooms := [][]byte{first}
	staged, _ := regions[0].Space.(memory.Staged)
	for i, r := range regions[1:] {
		if other, _ := r.Space.(memory.Staged); other != staged || uint64(len(rooms[i])) < regions[i].Frame.Bytes || staged != nil && !l.flow.Fits(r.Frame.Bytes) {
			break
		}
		room, err := l.room(r)
		if err != nil {
			return nil, err
		}
		rooms = append(rooms, room)
	}
	return rooms, nil
}

// park gives the buffers back while we wait for more data. unfilled is the number of last bytes of
// the last room that have not come. An error is that of the next room or flush.
func (l *landing) park(unfilled uint64) {
	if l.holds() {
		l.flow.Park(unfilled)
	}
}

// close drops data that was not flushed. After it, nothing writes to the regions.
func (l *landing) close() {
	if l.flow != nil {
		l.flow.Close()
	}
}
