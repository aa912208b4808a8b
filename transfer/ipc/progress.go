package ipc

import "github.com/millrace/millrace/transfer"

// forwardBytes is the minimum size of an object that downstream workers can read while it arrives.
// Smaller ones arrive before such a read could begin.
const forwardBytes = 32 << 20

// forwarding is the callback for an object's progress, and the step in bytes for its calls.
type forwarding struct {
	arrived func(bytes uint64)
	step    uint64
}

// forward asks a sink for the forwarding of an object. The result is empty if there is none.
func forward(sink transfer.Sink, index int, bytes uint64) (f forwarding) {
	if s := sink.Capabilities().Forward; s != nil && bytes >= forwardBytes {
		f.arrived, f.step = s.Forward(index)
	}
	return f
}

// forward arranges that the progress of an object with the given pieces is reported.
func (c *copyQueue) forward(g *group, object int, on forwarding, pieces []piece) {
	if on.arrived == nil {
		return
	}
	f := &progress{arrived: on.arrived, ends: make([]uint64, len(pieces)), over: make([]bool, len(pieces))}
	at := uint64(0)
	for i := range pieces {
		at += pieces[i].bytes
		f.ends[i], pieces[i].order = at, i
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if g.forwarded == nil {
		g.forwarded = make(map[int]*progress)
	}
	g.forwarded[object] = f
}

// progress tracks how many leading bytes of an object have arrived.
type progress struct {
	arrived func(bytes uint64)
	// ends[i] is the end of piece i within the object, over[i] says whether it has arrived. The
	// first next pieces have all arrived.
	ends []uint64
	over []bool
	next int
}

// end registers an arrived piece, and reports the bytes that have arrived without a gap if they
// grew.
func (p *progress) end(order int) {
	p.over[order] = true
	if order != p.next {
		return
	}
	for p.next < len(p.over) && p.over[p.next] {
		p.next++
	}
	p.arrived(p.ends[p.next-1])
}
