package executor

import (
	"net"
	"time"

	"golang.org/x/sys/unix"

	executorv1 "github.com/millrace/millrace/gen/go/millrace/executor/v1"
	"github.com/millrace/millrace/memory"
)

const (
	// segmentIdle is how long a segment stays attached without a run.
	// Mapping it again, and touching its pages for the first time, costs more than keeping it.
	// The memory of a worker that died is freed only after this time.
	segmentIdle = time.Second
	// maxRights is the number of descriptors sent with one write; the kernel accepts at most 253.
	maxRights = 200
)

// segment is memory of another worker that a process has mapped, or is about to map. Guarded by
// slot.mu.
type segment struct {
	number uint32
	// users is the number of runs that were sent and have no result yet.
	users int
	// idle is the time at which the last of them ended.
	idle time.Time
}

// locate returns a run's inputs as they are sent to the process, and counts the run as a user of
// the segments among them. REQUIRES: slot.mu is held.
func (p *process) locate(m *executorv1.ToExecutor, q *queued) []*executorv1.ExecutorInput {
	r := q.run
	if len(r.Spaces) == 0 {
		return r.Inputs
	}
	inputs := make([]*executorv1.ExecutorInput, len(r.Inputs))
	for i, in := range r.Inputs {
		if inputs[i] = in; r.Spaces[i] == nil {
			continue
		}
		s := p.attach(m, r.Spaces[i])
		s.users++
		q.segments = append(q.segments, s)
		// This is a copy, since the run may be sent to another process later, with other numbers.
		inputs[i] = &executorv1.ExecutorInput{Header: in.GetHeader(), TaskId: in.GetTaskId(), Generation: in.GetGeneration()}
		for _, f := range in.GetFrames() {
			inputs[i].Frames = append(inputs[i].Frames, &executorv1.FrameLocation{Offset: f.GetOffset(), SizeBytes: f.GetSizeBytes(), SegmentId: s.number})
		}
	}
	return inputs
}

// attach returns the segment of a space, and announces it to the process at its first use.
// REQUIRES: slot.mu is held.
func (p *process) attach(m *executorv1.ToExecutor, space memory.Space) *segment {
	s := p.segments[space]
	if s == nil {
		p.lastSegment++
		s = &segment{number: p.lastSegment}
		p.segments[space] = s
		m.AttachSegments = append(m.AttachSegments, &executorv1.ExecutorAttach{SegmentId: s.number, SizeBytes: space.Size()})
		p.rights = append(p.rights, space.FD())
	}
	return s
}

// endUse ends a run's use of its segments, since the run has a result. REQUIRES: slot.mu is held.
func (p *process) endUse(q *queued) {
	for _, s := range q.segments {
		if s.users--; s.users == 0 {
			s.idle = time.Now()
		}
	}
	q.segments = nil
}

// detachIdle detaches segments that have been idle for segmentIdle. It returns whether other
// segments are idle. REQUIRES: slot.mu is held.
func (p *process) detachIdle(now time.Time) (more bool) {
	for space, s := range p.segments { // the order does not matter
		switch {
		case s.users > 0:
		case now.Sub(s.idle) < segmentIdle:
			more = true
		default:
			delete(p.segments, space)
			m := p.queue()
			m.DetachSegments = append(m.DetachSegments, &executorv1.ExecutorDetach{SegmentId: s.number})
		}
	}
	return more
}

// writeMessage sends bytes, with the descriptors attached from the first byte on. REQUIRES: there
// are more bytes than descriptors.
func writeMessage(c *net.UnixConn, b []byte, rights []int) error {
	for len(rights) > 0 {
		n := min(len(rights), maxRights)
		piece := b
		if n < len(rights) {
			piece = b[:1]
		}
		sent, _, err := c.WriteMsgUnix(piece, unix.UnixRights(rights[:n]...), nil)
		if err != nil {
			return err
		}
		b, rights = b[sent:], rights[n:]
	}
	if len(b) == 0 {
		return nil
	}
	_, err := c.Write(b)
	return err
}
