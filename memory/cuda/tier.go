package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/memory"
)

const (
	// tierUnit is what sizes are rounded to, so that a disk below can write the bytes
	// without the page cache.
	tierUnit = 4096
	// tierBase is where the tier begins in its memory, behind the header page, and so
	// that large blocks lie on whole huge pages.
	tierBase = 2 << 20
	// registerBytes is how much is pinned at a time.
	registerBytes = 256 << 20
	// moveBytes is how much of a move is submitted at once; twice that is on its way,
	// so that other copies, in either direction, never wait for long.
	moveBytes = 64 << 20
	// moveSpares is how many events are kept for the next moves.
	moveSpares = 32
)

// TierConfig is fixed for the life of a tier.
type TierConfig struct {
	// Touchers is how many goroutines pin the memory, in the background; 0 is one for
	// each two processors, at most 8.
	Touchers int
	// StageBytes at the end are not part of the tier's Size: whoever made it may Save
	// and Load there as well.
	StageBytes uint64
	// RegisterBytes is how much is pinned at a time; 0 is 256 MiB. Tests want less.
	RegisterBytes uint64
	// AheadBytes is how much more than moves have used is pinned without much regard
	// for others; the rest trickles. 0: all of it, at once. While memory is pinned, the
	// driver lets few other calls of any process through.
	AheadBytes uint64
	// Pinned, if set, is told when all of it is pinned, or why it could not be.
	Pinned func(error)
}

// Tier is a memory.DirectTier: host memory that the device copies to and from its
// slabs. It is pinned piece by piece in the background; a move to what is not yet
// pinned pins it first.
type Tier struct {
	device *Device
	host   memory.Space
	data   []byte
	chunks []chunk
	chunk  uint64
	// touchers is how many goroutines pin.
	touchers int
	// size is the tier's, without what lies behind it.
	size uint64
	// out and in are streams of the tier alone, for Save and for Load.
	out, in *Stream
	// closing ends the pinning.
	closing chan struct{}
	pinning sync.WaitGroup
	// used is how many chunks moves have asked for; more tells that it has grown.
	used atomic.Int64
	more chan struct{}

	mu sync.Mutex
	// spares are events that no move uses. Guarded by mu.
	spares []*Event
}

// chunk is pinned as a whole.
type chunk struct {
	used   atomic.Bool
	pinned atomic.Bool

	mu sync.Mutex // is held while it is being pinned, and guards what follows
	// err is why it could not be pinned the last time, again when it is tried the next time, after a pause that doubles.
	err   error
	again time.Time
	pause time.Duration
}

const (
	// firstPinPause and lastPinPause are how long a chunk that could not be pinned is left alone: memory that others
	// had for a moment must not be missing for good.
	firstPinPause = 100 * time.Millisecond
	lastPinPause  = 30 * time.Second
)

var _ memory.DirectTier = (*Tier)(nil)

// NewTier makes a tier of all of a host space but its first 2 MiB. The space must
// outlive the tier.
func (d *Device) NewTier(host memory.Space, c TierConfig) (_ *Tier, err error) {
	data := host.Bytes(0, host.Size())
	if data == nil {
		return nil, errors.New("cuda: a tier must be memory of the host")
	}
	if least := tierBase + tierUnit + c.StageBytes; host.Size() < least {
		return nil, fmt.Errorf("cuda: %d bytes of pinned memory are less than %d; raise --pinned-limit", host.Size(), least)
	}
	if c.Touchers <= 0 {
		c.Touchers = min(max(runtime.GOMAXPROCS(0)/2, 1), 8)
	}
	if c.RegisterBytes == 0 {
		c.RegisterBytes = registerBytes
	}
	t := &Tier{device: d, host: host, data: data[tierBase : len(data)/tierUnit*tierUnit], chunk: c.RegisterBytes, touchers: c.Touchers, closing: make(chan struct{}), more: make(chan struct{}, 1)}
	t.size = (uint64(len(t.data)) - c.StageBytes) / tierUnit * tierUnit
	t.chunks = make([]chunk, (uint64(len(t.data))+t.chunk-1)/t.chunk)
	if t.out, err = d.NewStream(Spill); err != nil {
		return nil, err
	}
	// Somebody waits for what comes back.
	if t.in, err = d.NewStream(In); err != nil {
		return nil, errors.Join(err, t.out.Close())
	}
	t.pinInBackground(c)
	return t, nil
}

func (t *Tier) pinInBackground(c TierConfig) {
	var next atomic.Int64
	// What lies behind the tier is needed first.
	first := int(t.size / t.chunk)
	take := func() (i int, ok bool) {
		n := int(next.Add(1)) - 1
		return (first + n) % len(t.chunks), n < len(t.chunks)
	}
	touchers, ahead := c.Touchers, int(c.AheadBytes/t.chunk)
	if c.AheadBytes > 0 {
		touchers = 1
	}
	var workers sync.WaitGroup
	for range min(touchers, len(t.chunks)) {
		workers.Go(func() {
			begin := time.Now()
			for i, ok := take(); ok; i, ok = take() {
				select {
				case <-t.closing:
					return
				default:
				}
				if t.pin(i) != nil {
					return
				}
				if c.AheadBytes > 0 {
					t.pause(time.Since(begin), func() bool { return next.Load() < t.used.Load()+int64(ahead) })
				}
				begin = time.Now()
			}
		})
	}
	t.pinning.Go(func() {
		workers.Wait()
		if c.Pinned == nil {
			return
		}
		var errs []error
		for i := range t.chunks {
			select {
			case <-t.closing:
				return // it does not matter any more
			default:
				// Each was tried, unless an earlier one failed: then this tells why.
				errs = append(errs, t.pin(i))
			}
			if errs[len(errs)-1] != nil {
				break
			}
		}
		c.Pinned(errors.Join(errs...))
	})
}

const (
	// restNear and restFar are how long pinning rests, in times of what it took: before
	// and behind what is wanted soon.
	restNear = 1
	restFar  = 19
)

// pause lets others at the driver after so long a time of pinning.
func (t *Tier) pause(took time.Duration, soon func() bool) {
	begin := time.Now()
	for {
		rest := restFar * took
		if soon() {
			rest = restNear * took
		}
		if rest -= time.Since(begin); rest <= 0 {
			return
		}
		timer := time.NewTimer(rest)
		select {
		case <-t.closing:
			timer.Stop()
			return
		case <-t.more:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// want is pin for a move.
func (t *Tier) want(i int) error {
	if !t.chunks[i].used.Swap(true) {
		t.used.Add(1)
		select {
		case t.more <- struct{}{}:
		default:
		}
	}
	return t.pin(i)
}

// bytes are those of a chunk.
func (t *Tier) bytes(i int) []byte {
	from := uint64(i) * t.chunk
	return t.data[from:min(from+t.chunk, uint64(len(t.data)))]
}

// pin returns when a chunk is pinned. After a failure it returns the same error for some time, then tries again.
func (t *Tier) pin(i int) error {
	c := &t.chunks[i]
	if c.pinned.Load() {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pinned.Load() {
		return nil
	}
	if c.err != nil && time.Now().Before(c.again) {
		return c.err
	}
	data := t.bytes(i)
	if c.err = touch(data, RegisterConfig{Touchers: 1}); c.err != nil {
		c.err = fmt.Errorf("cuda: %d more bytes of pinned memory: %w; lower --pinned-limit", len(data), c.err)
	} else {
		c.err = t.device.pin(data, false)
	}
	if c.err != nil {
		c.pause = min(max(2*c.pause, firstPinPause), lastPinPause)
		c.again = time.Now().Add(c.pause)
		return c.err
	}
	c.pinned.Store(true)
	return nil
}

// Name is part of memory.Tier.
func (t *Tier) Name() string { return "pinned" }

// Size is part of memory.Tier.
func (t *Tier) Size() uint64 { return t.size }

// UnitBytes is part of memory.Tier.
func (t *Tier) UnitBytes() uint64 { return tierUnit }

// DiscardBytes is part of memory.Tier: pinned pages are not given back.
func (t *Tier) DiscardBytes() uint64 { return 0 }

// Discard is part of memory.Tier.
func (t *Tier) Discard(uint64, uint64) error { return nil }

// Host is part of memory.DirectTier.
func (t *Tier) Host() (s memory.Space, base uint64) { return t.host, tierBase }

// ReadInto is part of memory.Reader.
func (t *Tier) ReadInto(off uint64, p []byte) error {
	if err := t.contains(off, uint64(len(p))); err != nil {
		return err
	}
	copy(p, t.data[off:])
	return nil
}

// Write is part of memory.Tier, by the processor.
func (t *Tier) Write(off uint64, p []byte) (sum uint32, err error) {
	if err := t.contains(off, uint64(len(p))); err != nil {
		return 0, err
	}
	copy(t.data[off:], p)
	return memory.Checksum(0, p), nil
}

// Read is part of memory.Tier, by the processor.
func (t *Tier) Read(off uint64, p []byte, sum uint32) error {
	if err := t.ReadInto(off, p); err != nil {
		return err
	}
	if is := memory.Checksum(0, p); is != sum {
		return fmt.Errorf("cuda: %d bytes at %d of pinned memory: %w: %08x, written as %08x", len(p), off, memory.ErrChecksum, is, sum)
	}
	return nil
}

func (t *Tier) contains(off, n uint64) error {
	if !(memory.Frame{Offset: off, Bytes: n}).Within(uint64(len(t.data))) {
		return fmt.Errorf("cuda: [%d, +%d): outside of the %d bytes of pinned memory", off, n, len(t.data))
	}
	return nil
}

// Reaches is part of memory.DirectTier.
func (t *Tier) Reaches(s memory.Space) bool {
	slab, ok := s.(*Slab)
	return ok && slab.device == t.device
}

// Save is part of memory.DirectTier.
func (t *Tier) Save(off uint64, from memory.Space, f memory.Frame) error {
	return t.move(t.out, off, from, f, func(host, device, n uint64) Copy { return ToHost(host, device, n) })
}

// Load is part of memory.DirectTier.
func (t *Tier) Load(off uint64, to memory.Space, f memory.Frame) error {
	return t.move(t.in, off, to, f, func(host, device, n uint64) Copy { return ToDevice(device, host, n) })
}

// move copies in parts, of which two are on their way.
func (t *Tier) move(stream *Stream, off uint64, space memory.Space, f memory.Frame, copies func(host, device, n uint64) Copy) (err error) {
	if err := t.contains(off, f.Bytes); err != nil {
		return err
	}
	if !t.Reaches(space) {
		return fmt.Errorf("cuda: pinned memory of %s does not reach that space", t.device.name)
	}
	device := space.(*Slab).Pointer(f.Offset, f.Bytes)
	var begun []*Event
	defer func() {
		for _, e := range begun {
			// After an error the bytes must be left alone as well.
			err = errors.Join(err, e.Sync())
		}
		t.giveBack(begun)
	}()
	for done := uint64(0); done < f.Bytes; {
		part, n, err := t.part(off+done, device+done, f.Bytes-done, copies)
		if err != nil {
			return err
		}
		if len(begun) == 2 {
			if err := begun[0].Sync(); err != nil {
				return err
			}
			t.giveBack(begun[:1])
			begun = begun[1:]
		}
		event, err := t.event()
		if err != nil {
			return err
		}
		if err := stream.Copy(part, event); err != nil {
			t.giveBack([]*Event{event})
			return errors.Join(err, stream.Sync()) // some may be on their way
		}
		begun = append(begun, event)
		done += n
	}
	return nil
}

// part makes the copies of the next n bytes: one copy never reaches into memory that
// was pinned separately.
func (t *Tier) part(off, device, left uint64, copies func(host, device, n uint64) Copy) (list []Copy, n uint64, err error) {
	for left = min(left, moveBytes); n < left; {
		at := off + n
		i := at / t.chunk
		if err := t.want(int(i)); err != nil {
			return nil, 0, err
		}
		some := min(left-n, (i+1)*t.chunk-at)
		list = append(list, copies(address(t.data)+at, device+n, some))
		n += some
	}
	return list, n, nil
}

func (t *Tier) event() (*Event, error) {
	t.mu.Lock()
	if n := len(t.spares); n > 0 {
		e := t.spares[n-1]
		t.spares = t.spares[:n-1]
		t.mu.Unlock()
		return e, nil
	}
	t.mu.Unlock()
	return t.device.NewEvent()
}

func (t *Tier) giveBack(events []*Event) {
	t.mu.Lock()
	keep := min(len(events), moveSpares-min(moveSpares, len(t.spares)))
	t.spares = append(t.spares, events[:keep]...)
	t.mu.Unlock()
	for _, e := range events[keep:] {
		_ = e.Close() // it fails only with the device
	}
}

// Close ends the pinning, also of what is pinned. REQUIRES: nothing is being moved.
func (t *Tier) Close() error {
	close(t.closing)
	t.pinning.Wait()
	var errs []error
	for _, e := range t.spares {
		errs = append(errs, e.Close())
	}
	t.spares = nil
	errs = append(errs, t.out.Close(), t.in.Close())
	// It takes as long as the pinning: the worker's successor waits for it.
	unpinned := make([]error, len(t.chunks))
	var group sync.WaitGroup
	var next atomic.Int64
	for range min(t.touchers, len(t.chunks)) {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(t.chunks); i = int(next.Add(1)) - 1 {
				if t.chunks[i].pinned.Load() {
					unpinned[i] = t.device.unpin(t.bytes(i))
				}
			}
		})
	}
	group.Wait()
	return errors.Join(append(errs, unpinned...)...)
}
