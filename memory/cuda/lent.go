package cuda

import (
	"errors"
	"fmt"
	"sync"

	"github.com/millrace/millrace/memory"
)

// Lent is host memory of another process, mapped here for reading. The device copies from it. If
// the device can pin read-only memory, each part is pinned when a copy first needs it. If it
// cannot, or after a part could not be pinned, the driver copies parts that are not pinned through
// its own buffers. The memory is that of a Tier whose owner has pinned it, so its pages stay in
// place while the device reads them.
type Lent struct {
	device *Device
	data   []byte
	parts  []lentPart

	mu sync.Mutex
	// pageable is the reason why no more parts are pinned. It is nil while copies may pin parts.
	// Guarded by mu.
	pageable error
	// unfindable says that kernels do not find some of the memory. Guarded by mu.
	unfindable bool
}

// lentTouchers is the number of goroutines that map the pages of a part into this process before it
// is pinned. There are several, because mapping the pages takes longer than pinning them.
const lentTouchers = 4

// lentPart is a range of the memory that is pinned as a whole; once is its only attempt.
type lentPart struct {
	once   sync.Once
	pinned bool
}

// NewLent makes a Lent of data, which must stay mapped until the Lent is closed.
func (d *Device) NewLent(data []byte) *Lent {
	l := &Lent{device: d, data: data}
	l.parts = make([]lentPart, 1+l.part(uint64(max(len(data), 1)-1)))
	if !d.info.Attributes.ReadOnlyRegistration {
		l.pageable = errors.New("this GPU does not pin memory that may only be read")
	}
	return l
}

// part returns the index of the part that contains the byte at an offset. The bytes before the tier
// are part 0.
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

// pin pins a part, if that is possible and was not tried before.
func (l *Lent) pin(part int) {
	p := &l.parts[part]
	p.once.Do(func() {
		if l.Pageable() != nil {
			return
		}
		from, to := l.within(part)
		// The copy waits until the part is pinned, so map its pages with several goroutines.
		config := RegisterConfig{Touchers: lentTouchers, ReadOnly: true}
		err := touch(l.data[from:to], config)
		if err == nil {
			err = l.device.pin(l.data[from:to], config.ReadOnly)
		}
		p.pinned = err == nil
		findable := p.pinned && l.device.findable(l.data[from:to]) == nil
		l.mu.Lock()
		defer l.mu.Unlock()
		if !p.pinned {
			l.pageable = err
		}
		l.unfindable = l.unfindable || !findable
	})
}

// Pageable returns the reason why no more parts are pinned, so that copies from other parts use the
// driver's buffers. It is nil while copies may pin parts.
func (l *Lent) Pageable() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pageable
}

// Kernels says whether kernels can read all that copies have been asked for so far.
func (l *Lent) Kernels() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pageable == nil && !l.unfindable
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
