package ipc

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	hostv1 "github.com/millrace/millrace/gen/go/millrace/host/v1"
	"github.com/millrace/millrace/internal/slabshare"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/objindex"
)

// mapping is the memory of one incarnation of a peer, mapped in this process. Two connections to
// the same peer, one of which is ending, share it.
type mapping struct {
	path     *Path
	export   cuda.Export
	identity memory.Identity
	queue    *copyQueue
	// token is the egress token of the source; nil if the source has none.
	token *objindex.EgressToken
	// places are the windows of the queue. streams and events are the resources that the places
	// use.
	places  [2][]place
	streams []*cuda.Stream
	events  []*cuda.Event
	// peer is a slab on a GPU. nil: data is mapped host memory, and file is its file.
	peer *cuda.Peer
	data []byte
	file *os.File
	// chunk bounds the bytes of one copy. base is the address of the memory's byte 0.
	chunk uint64
	base  uint64
	proof Link

	// uses counts the connections; guarded by path.mu. dead: a connection reported the peer dead.
	uses int
	dead bool
}

var _ borrow.Memory = (*mapping)(nil)

// Size is part of memory.Space.
func (m *mapping) Size() uint64 { return m.export.SizeBytes }

// Identity is part of memory.Space.
func (m *mapping) Identity() memory.Identity { return m.identity }

// Bytes is part of memory.Space. It returns nil: only the device can access this memory.
func (m *mapping) Bytes(uint64, uint64) []byte { return nil }

// FD is part of memory.Space.
func (m *mapping) FD() int { return -1 }

// open is borrow.Config.Open.
func (p *Path) open(at transfer.Peer, welcome *hostv1.BorrowWelcome, file *os.File, token *objindex.EgressToken) (borrow.Memory, error) {
	export := cuda.Export{SizeBytes: welcome.GetMemoryBytes(), Identity: borrow.Identity(welcome)}
	copy(export.Handle[:], welcome.GetDevice().GetIpcHandle())
	copy(export.Device[:], welcome.GetDevice().GetDeviceUuid())
	// One at a time: a second caller for the same memory waits for the first one's mapping.
	p.opening.Lock()
	defer p.opening.Unlock()
	if file == nil {
		p.mu.Lock()
		known := p.mappings[export.Handle]
		if known != nil && known.export == export {
			known.uses++
			p.mu.Unlock()
			if token != nil {
				_ = token.Close() // it maps the same token
			}
			return known, nil
		}
		p.mu.Unlock()
	}
	if p.config.Suspect != nil && file == nil {
		if why := p.config.Suspect(export.Device); why != nil {
			return nil, fmt.Errorf("ipc: %s: %w: %w", at, transfer.ErrUnreachable, why)
		}
	}
	m := &mapping{path: p, export: export, identity: export.Identity, chunk: chunkBytes, uses: 1}
	var err error
	if file == nil {
		err = m.mapDevice()
	} else {
		err = m.mapHost(file, welcome)
	}
	if err == nil {
		err = m.prepare()
	}
	if err != nil {
		return nil, errors.Join(err, m.unmap())
	}
	if file != nil {
		m.file = file
	}
	m.take(token)
	p.mu.Lock()
	if m.peer != nil {
		p.mappings[export.Handle] = m
	}
	p.peers[at.Address] = m
	p.mu.Unlock()
	p.config.Log.Info("a peer's memory is mapped for copies by the device", "peer", at.String(), "link", m.proof.String())
	return m, nil
}

// trusted returns an error if the memory of a peer must not be read, and nil if it may be, or is
// not mapped yet.
func (p *Path) trusted(at transfer.Peer) error {
	p.mu.Lock()
	m := p.peers[at.Address]
	p.mu.Unlock()
	if why := m.suspect(); why != nil {
		return fmt.Errorf("ipc: %s: %w: %w", at, transfer.ErrUnreachable, why)
	}
	return nil
}

// suspect returns the reason why the memory must not be read, or nil.
func (m *mapping) suspect() error {
	if m == nil || m.peer == nil || m.path.config.Suspect == nil {
		return nil
	}
	return m.path.config.Suspect(m.export.Device)
}

// take gives the egress token to the queue. REQUIRES: the queue is not used yet.
func (m *mapping) take(token *objindex.EgressToken) {
	switch {
	case token == nil:
	case m.peer == nil:
		_ = token.Close() // a read from host memory is slower than the link, so it needs no token
	default:
		m.token, m.queue.token = token, token
	}
}

func (m *mapping) mapDevice() (err error) {
	if m.peer, err = m.path.config.Device.OpenPeer(m.export); err != nil {
		return err
	}
	m.base = m.peer.Pointer(0, m.export.SizeBytes)
	return nil
}

// mapHost maps the memory of a worker without a GPU. It is not registered with the driver: the
// device would keep pages that their owner returned to the system, and would read old contents.
func (m *mapping) mapHost(file *os.File, welcome *hostv1.BorrowWelcome) (err error) {
	if m.data, err = slabshare.Map(file, welcome, false); err != nil {
		return err
	}
	m.base, m.chunk = address(m.data), pageableBytes
	return nil
}

// prepare creates the copy queue and proves the link by timed reads.
func (m *mapping) prepare() (err error) {
	if err := m.makePlaces(); err != nil {
		return err
	}
	m.queue = newCopyQueue([2][]place{slices.Clone(m.places[small]), slices.Clone(m.places[large])})
	m.queue.quiet = m.quiet
	if m.peer != nil {
		m.queue.gate = &m.path.gate
		m.queue.fastest = fastest(m.path.config.Device.Info(), m.export.Device)
	} else {
		m.queue.copy = cuda.ToDevice
	}
	if err := m.prove(); err != nil {
		return err
	}
	m.queue.tally.rates = [methods]float64{byEngine: m.proof.BytesPerSecond, byKernel: m.proof.GatherBytesPerSecond}
	return nil
}

// quiet is copyQueue.quiet.
func (m *mapping) quiet() (lost bool, err error) {
	for _, s := range m.streams {
		if m.path.config.Device.Health() != nil {
			return true, nil // on a lost device the wait would never end
		}
		err = errors.Join(err, s.Sync())
	}
	return m.path.config.Device.Health() != nil, err
}

// fastest returns an upper bound of the rate from a peer's GPU, in bytes per second; 0 means none
// is known: the memory is that of the same GPU, or the GPU is newer than Hopper and has faster
// links.
func fastest(own cuda.Info, peer cuda.UUID) float64 {
	const hopper = 9
	if own.UUID == peer || own.Attributes.ComputeMajor > hopper {
		return 0
	}
	return fastestLink
}

// makePlaces gives each place for small frames its own stream, and all places for large ones the
// same.
func (m *mapping) makePlaces() error {
	d := m.path.config.Device
	for kind := range m.places {
		var stream *cuda.Stream
		for i := range window {
			if kind == small || i == 0 {
				var err error
				if stream, err = d.NewStream(cuda.In); err != nil {
					return err
				}
				m.streams = append(m.streams, stream)
			}
			event, err := d.NewPolledEvent()
			if err != nil {
				return err
			}
			m.events = append(m.events, event)
			m.places[kind] = append(m.places[kind], place{stream, &marker{event: event, stream: stream}})
		}
	}
	return nil
}

// prove measures timed reads from the beginning of the peer's memory. The first read also
// establishes the mapping on the device.
func (m *mapping) prove() error {
	scratch, err := m.path.scratchMemory()
	if err != nil {
		return err
	}
	cq, n := m.queue, min(proofBytes, m.export.SizeBytes)
	to := scratch.Pointer(0, n)
	// slot is that of a gather, or -1 for the copy engine.
	timed := func(rows []row, bytes uint64, slot int) (time.Duration, error) {
		began := time.Now()
		p := &post{pieces: []piece{{rows: rows}}, bytes: bytes, slot: slot, place: m.places[small][0]}
		var err error
		if slot >= 0 {
			err = m.path.gather.launch(p.stream, p)
		} else {
			err = p.stream.Copy(copies(nil, p.pieces, cq.copy), m.events[0])
		}
		err = errors.Join(err, p.stream.Sync())
		return time.Since(began), err
	}
	measure := func(rows []row, bytes uint64, slot int) (best time.Duration, err error) {
		for i := range proofs {
			took, err := timed(rows, bytes, slot)
			if err != nil {
				return 0, err
			}
			if i == 0 || took < best {
				best = took
			}
		}
		return best, nil
	}
	tiny, err := measure([]row{{To: to, From: m.base, Bytes: memory.HeaderBytes}}, memory.HeaderBytes, -1)
	if err != nil {
		return fmt.Errorf("ipc: first read: %w", err)
	}
	large, err := measure([]row{{To: to, From: m.base, Bytes: n}}, n, -1)
	if err != nil {
		return fmt.Errorf("ipc: timed read: %w", err)
	}
	m.proof = Link{Latency: tiny, BytesPerSecond: float64(n) / large.Seconds(), Device: m.export.Device, Host: m.peer == nil}
	if m.peer == nil || m.path.gather == nil {
		m.proof.Why = m.path.noGather
		return nil
	}
	slot := m.path.gather.take()
	if slot < 0 {
		m.proof.Why = "all tables were in use when the link was proved"
		return nil
	}
	defer m.path.gather.give(slot)
	var rows []row
	for at := uint64(0); at < n; at += cuda.GatherRow {
		rows = append(rows, row{To: to + at, From: m.base + at, Bytes: min(cuda.GatherRow, n-at)})
	}
	took, err := measure(rows, n, slot)
	if err != nil {
		return fmt.Errorf("ipc: timed read by the gather kernel: %w", err)
	}
	m.proof.GatherBytesPerSecond = float64(n) / took.Seconds()
	cq.gather = m.path.gather
	return nil
}

// Close is part of borrow.Memory.
func (m *mapping) Close(dead bool) {
	p := m.path
	p.opening.Lock()
	defer p.opening.Unlock()
	p.mu.Lock()
	m.uses--
	m.dead = m.dead || dead
	last := m.uses == 0
	if last {
		if p.mappings[m.export.Handle] == m {
			delete(p.mappings, m.export.Handle)
		}
		for at, known := range p.peers {
			if known == m {
				delete(p.peers, at)
			}
		}
	}
	p.mu.Unlock()
	if !last {
		return
	}
	if err := m.unmap(); err != nil {
		p.config.Log.Error("a peer's memory could not be unmapped, and stays allocated", "device", m.export.Device.String(), "error", err)
	} else {
		p.config.Log.Info("a peer's memory is unmapped", "device", m.export.Device.String(), "dead", m.dead)
	}
	if p.config.Unmapped != nil {
		p.config.Unmapped(m.identity, m.dead)
	}
}

// unmap undoes open. The last loan has ended, so no copy is under way.
func (m *mapping) unmap() error {
	var errs []error
	for _, e := range m.events {
		errs = append(errs, e.Close())
	}
	if m.token != nil {
		errs = append(errs, m.token.Close())
	}
	for _, s := range m.streams {
		_ = s.Sync() // a gather writes its word just before it ends; on a lost device nothing runs
		errs = append(errs, s.Close())
	}
	if m.peer != nil && m.dead {
		// Another process waits for this memory, so UCX's own mapping of it must be closed, too.
		done := make(chan error, 1)
		m.peer.Retire(func(err error) { done <- err })
		errs = append(errs, <-done)
	} else if m.peer != nil {
		errs = append(errs, m.peer.Close())
	}
	if m.data != nil {
		errs = append(errs, slabshare.Unmap(m.data))
	}
	if m.file != nil {
		errs = append(errs, m.file.Close())
	}
	return errors.Join(errs...)
}

// scratchMemory returns the destination of timed reads. REQUIRES: opening.
func (p *Path) scratchMemory() (*cuda.Scratch, error) {
	if p.scratch == nil {
		s, err := p.config.Device.NewScratch(proofBytes, 0)
		if err != nil {
			return nil, err
		}
		p.scratch = s
	}
	return p.scratch, nil
}
