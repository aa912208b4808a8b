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
	// tierUnit is the unit to which sizes are rounded, so that a disk tier below can write the
	// bytes without the page cache.
	tierUnit = 4096
	// tierBase is the offset of the tier in its host space. It lies behind the header page and is a
	// multiple of the huge page size, so that large blocks lie on whole huge pages.
	tierBase = 2 << 20
	// registerBytes is the default number of bytes that are pinned at a time.
	registerBytes = 256 << 20
	// moveBytes is the size of one part of a move. At most two parts are in progress, so that other
	// copies, in either direction, never wait for long.
	moveBytes = 64 << 20
	// moveSpares is the largest number of events that are kept for later moves.
	moveSpares = 32
)

// TierConfig is fixed for the life of a tier.
type TierConfig struct {
	// Touchers is the number of goroutines that pin the memory in the background, and that unpin it
	// in Close. 0 means one for each two processors, at most 8. With AheadBytes, only one goroutine
	// pins.
	Touchers int
	// StageBytes at the end of the memory are not part of the tier's Size. The creator of the tier
	// may use them with Save and Load as well.
	StageBytes uint64
	// RegisterBytes is the number of bytes that are pinned at a time; 0 means 256 MiB. Tests use
	// less.
	RegisterBytes uint64
	// AheadBytes is the amount beyond the bytes used by moves that is pinned at half of the full
	// speed. The rest is pinned slowly. 0 means to pin everything without pauses. The pauses are
	// necessary because the driver lets few other calls of any process through while memory is
	// pinned.
	AheadBytes uint64
	// Pinned, if set, is called when all of the memory is pinned, or with the reason why that
	// failed.
	Pinned func(error)
}

// Tier is a memory.DirectTier: host memory that the device copies to and from its slabs. It is
// pinned chunk by chunk in the background. A move to a chunk that is not yet pinned pins it first.
type Tier struct {
	device *Device
	host   memory.Space
	data   []byte
	chunks []chunk
	chunk  uint64
	// touchers is the number of goroutines that unpin the memory in Close.
	touchers int
	// size is the size of the tier, without the StageBytes behind it.
	size uint64
	// out and in are streams that only this tier uses, for Save and for Load.
	out, in *Stream
	// gathers are the copies of Gather.
	gathers *Copier
	// unfindable says that kernels do not find some of the memory.
	unfindable atomic.Bool
	// closing is closed to end the pinning in the background.
	closing chan struct{}
	pinning sync.WaitGroup
	// used is the number of chunks that moves have used. more receives a value when used has grown.
	used atomic.Int64
	more chan struct{}

	mu sync.Mutex
	// spares are events that no move uses. Guarded by mu.
	spares []*Event
}

// chunk is a part of the memory that is pinned as a whole.
type chunk struct {
	used   atomic.Bool
	pinned atomic.Bool

	mu sync.Mutex // held while the chunk is being pinned; guards the fields below
	// err is the error of the last attempt to pin it. again is the time of the next attempt. pause
	// is the wait between the two, which doubles.
	err   error
	again time.Time
	pause time.Duration
}

const (
	// firstPinPause and lastPinPause limit the time after a failed attempt to pin a chunk in which
	// no other attempt is made. There are later attempts because the memory may have been in use
	// for a moment only.
	firstPinPause = 100 * time.Millisecond
	lastPinPause  = 30 * time.Second
)

var _ memory.DirectTier = (*Tier)(nil)

// NewTier makes a tier of a host space, except for its first 2 MiB. The space must outlive the
// tier.
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
	// Tasks wait for the bytes that Load brings back, so this stream is urgent.
	if t.in, err = d.NewStream(In); err != nil {
		return nil, errors.Join(err, t.out.Close())
	}
	if t.gathers, err = d.NewCopier(Out); err != nil {
		return nil, errors.Join(err, t.out.Close(), t.in.Close())
	}
	t.pinInBackground(c)
	return t, nil
}

func (t *Tier) pinInBackground(c TierConfig) {
	var next atomic.Int64
	// The StageBytes behind the tier are needed first.
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
				return // the result is not needed any more
			default:
				// Each chunk was tried, unless an earlier one failed. Then this call returns the
				// reason.
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
	// restNear and restFar are the length of a rest, as a multiple of the time that the last chunk
	// took: for chunks that are needed soon, and for chunks that are not.
	restNear = 1
	restFar  = 19
)

// pause rests after a chunk, so that other users of the driver get a turn. took is the time to pin
// the chunk. soon says whether the next chunk is needed soon.
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

// want pins a chunk for a move.
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

// bytes returns the memory of a chunk.
func (t *Tier) bytes(i int) []byte {
	from := uint64(i) * t.chunk
	return t.data[from:min(from+t.chunk, uint64(len(t.data)))]
}

// pin returns when a chunk is pinned. After a failure it returns the same error for some time, then
// tries again.
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
	if t.device.findable(data) != nil {
		t.unfindable.Store(true)
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

// DiscardBytes is part of memory.Tier. It returns 0, because pinned pages are not given back.
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

// Write is part of memory.Tier. The processor copies the bytes.
func (t *Tier) Write(off uint64, p []byte) (sum uint32, err error) {
	if err := t.contains(off, uint64(len(p))); err != nil {
		return 0, err
	}
	copy(t.data[off:], p)
	return memory.Checksum(0, p), nil
}

// Read is part of memory.Tier. The processor copies the bytes.
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
	return t.move(t.out, off, from, f, toTier)
}

// Load is part of memory.DirectTier.
func (t *Tier) Load(off uint64, to memory.Space, f memory.Frame) error {
	return t.move(t.in, off, to, f, func(host, device, n uint64) Copy { return ToDevice(device, host, n) })
}

// Gather is part of memory.DirectTier.
func (t *Tier) Gather(off uint64, from memory.Space, pieces []memory.Piece) error {
	if !t.Reaches(from) {
		return fmt.Errorf("cuda: pinned memory of %s does not reach that space", t.device.name)
	}
	var list []Copy
	for _, p := range pieces {
		at := off + p.At
		if err := t.contains(at, p.Bytes); err != nil {
			return err
		}
		device := from.(*Slab).Pointer(p.Offset, p.Bytes)
		for done := uint64(0); done < p.Bytes; {
			part, n, err := t.part(at+done, device+done, p.Bytes-done, toTier)
			if err != nil {
				return err
			}
			list = append(list, part...)
			done += n
		}
	}
	copying, err := t.gathers.Start(list, !t.unfindable.Load())
	if err != nil {
		return err
	}
	return copying.Wait()
}

func toTier(host, device, n uint64) Copy { return ToHost(host, device, n) }

// move copies in parts. At most two parts are in progress.
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
			// The bytes must not be used before the copies have ended, even after an error.
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
			return errors.Join(err, stream.Sync()) // some copies may be in progress
		}
		begun = append(begun, event)
		done += n
	}
	return nil
}

// part returns the copies of the next n bytes. No copy crosses from one pinned chunk to the next.
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
		_ = e.Close() // it fails only if the device is lost
	}
}

// Close stops the pinning and unpins the memory.
// REQUIRES: no move is in progress.
func (t *Tier) Close() error {
	close(t.closing)
	t.pinning.Wait()
	var errs []error
	for _, e := range t.spares {
		errs = append(errs, e.Close())
	}
	t.spares = nil
	errs = append(errs, t.out.Close(), t.in.Close(), t.gathers.Close())
	// Unpin in parallel. It takes as long as the pinning, and the worker's successor waits for it.
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
