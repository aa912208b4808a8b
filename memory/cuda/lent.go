package cuda

import (
	"errors"
	"fmt"
	"sync"

	"github.com/millrace/millrace/memory"
)

// Lent is host memory of another process, mapped here for reading, that the device
// copies from. Where the device can pin what may only be read, each part is pinned
// when a copy first needs it; else the driver copies by way of its own buffers. The
// parts are those of a Tier, whose owner has pinned them as well: pinned pages stay
// what they are, while others could be given back to the system under the device.
type Lent struct {
	device *Device
	data   []byte
	parts  []lentPart

	mu sync.Mutex
	// pageable is why nothing more is pinned; nil: parts are. Guarded by mu.
	pageable error
}

// lentTouchers is how many goroutines bring the pages of a part into this process: that
// takes longer than to pin them.
const lentTouchers = 4

// lentPart is pinned as a whole.
type lentPart struct {
	once   sync.Once
	pinned bool
}

// NewLent takes memory, which must outlive what it returns.
func (d *Device) NewLent(data []byte) *Lent {
	l := &Lent{device: d, data: data}
	l.parts = make([]lentPart, 1+l.part(uint64(max(len(data), 1)-1)))
	if !d.info.Attributes.ReadOnlyRegistration {
		l.pageable = errors.New("this GPU does not pin memory that may only be read")
	}
	return l
}

// part is which one a byte lies in: what is before a tier is the first.
func (l *Lent) part(at uint64) int {
	if at < tierBase {
		return 0
	}
	return 1 + int((at-tierBase)/registerBytes)
}

// within are the bounds of a part.
func (l *Lent) within(part int) (from, to uint64) {
	if part == 0 {
		return 0, min(tierBase, uint64(len(l.data)))
	}
	from = tierBase + uint64(part-1)*registerBytes
	return from, min(from+registerBytes, uint64(len(l.data)))
}

// Copies appends what brings a frame to an address of the device. No copy reaches into
// memory that was pinned separately.
func (l *Lent) Copies(list []Copy, to uint64, f memory.Frame) ([]Copy, error) {
	if !f.Within(uint64(len(l.data))) {
		return list, fmt.Errorf("cuda: [%d, +%d): outside of the %d bytes that were lent", f.Offset, f.Bytes, len(l.data))
	}
	for done := uint64(0); done < f.Bytes; {
		at := f.Offset + done
		part := l.part(at)
		l.pin(part)
		_, end := l.within(part)
		n := min(f.Bytes-done, end-at)
		list = append(list, ToDevice(to+done, address(l.data)+at, n))
		done += n
	}
	return list, nil
}

// pin pins a part unless that cannot be.
func (l *Lent) pin(part int) {
	p := &l.parts[part]
	p.once.Do(func() {
		if l.Pageable() != nil {
			return
		}
		from, to := l.within(part)
		// Somebody waits for it.
		config := RegisterConfig{Touchers: lentTouchers, ReadOnly: true}
		err := touch(l.data[from:to], config)
		if err == nil {
			err = l.device.pin(l.data[from:to], config.ReadOnly)
		}
		if p.pinned = err == nil; !p.pinned {
			l.mu.Lock()
			l.pageable = err
			l.mu.Unlock()
		}
	})
}

// Pageable is why copies go by way of the driver's buffers; nil if they do not.
func (l *Lent) Pageable() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pageable
}

// Close gives the memory back. REQUIRES: no copy uses it.
func (l *Lent) Close() error {
	var errs []error
	for i := range l.parts {
		if l.parts[i].pinned {
			from, to := l.within(i)
			errs = append(errs, l.device.unpin(l.data[from:to]))
		}
	}
	return errors.Join(errs...)
}
