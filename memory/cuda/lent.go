package cuda

import (
	"errors"
	"fmt"
	"sync"

	"github.com/millrace/millrace/memory"
)

// Lent is host memory of another process, mapped here for reading. The device copies from it. If
// the device can pin read-only memory, each part is pinned when a copy first needs it. Otherwise
// the driver copies through its own buffers. The parts are those of a Tier whose owner has pinned
// them as well. That matters because pinned pages stay in place, while the system could take other
// pages away from under the device.
type Lent struct {
	device *Device
	data   []byte
	parts  []lentPart

	mu sync.Mutex
	// pageable is the reason why no more parts are pinned; nil means that parts are pinned. Guarded
	// by mu.
	pageable error
}

// lentTouchers is the number of goroutines that bring the pages of a part into this process, which
// takes longer than pinning them.
const lentTouchers = 4

// lentPart is a part, which is pinned as a whole.
type lentPart struct {
	once   sync.Once
	pinned bool
}

// NewLent uses memory that must stay mapped until the Lent is closed.
func (d *Device) NewLent(data []byte) *Lent {
	l := &Lent{device: d, data: data}
	l.parts = make([]lentPart, 1+l.part(uint64(max(len(data), 1)-1)))
	if !d.info.Attributes.ReadOnlyRegistration {
		l.pageable = errors.New("this GPU does not pin memory that may only be read")
	}
	return l
}

// part returns the index of the part that contains a byte. The bytes before the tier are part 0.
func (l *Lent) part(at uint64) int {
	if at < tierBase {
		return 0
	}
	return 1 + int((at-tierBase)/registerBytes)
}

// within returns the bounds of a part.
func (l *Lent) within(part int) (from, to uint64) {
	if part == 0 {
		return 0, min(tierBase, uint64(len(l.data)))
	}
	from = tierBase + uint64(part-1)*registerBytes
	return from, min(from+registerBytes, uint64(len(l.data)))
}

// Copies appends the copies that bring a frame to an address on the device. No copy crosses from
// one pinned part to the next.
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

// pin pins a part if that is possible.
func (l *Lent) pin(part int) {
	p := &l.parts[part]
	p.once.Do(func() {
		if l.Pageable() != nil {
			return
		}
		from, to := l.within(part)
		// A copy waits for it.
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

// Pageable returns the reason why copies use the driver's buffers; nil if they do not.
func (l *Lent) Pageable() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pageable
}

// Close unpins the memory.
// REQUIRES: no copy uses it.
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
