package executor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	executorv1 "github.com/millrace/millrace/gen/go/millrace/executor/v1"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/text"
)

// queue returns the message that collects what is sent next, and wakes the writer. REQUIRES:
// slot.mu is held.
func (p *process) queue() *executorv1.ToExecutor {
	if p.pending == nil {
		p.pending = new(executorv1.ToExecutor)
	}
	select {
	case p.outgoing <- struct{}{}:
	default:
	}
	return p.pending
}

// send queues a run. REQUIRES: slot.mu is held, and refuses has returned nil.
func (p *process) send(q *queued) {
	m := p.queue()
	p.ordinal++
	q.ordinal = p.ordinal
	r := q.run
	p.page.Sent(q.ordinal, r.Ref.Task, r.Ref.Attempt)
	if f := r.Function; f != nil {
		if hash := ids.FunctionHash(f.GetHash()); !p.sentFunc[hash] {
			p.sentFunc[hash] = true
			was := len(m.DroppedFunctions)
			m.DroppedFunctions = slices.DeleteFunc(m.DroppedFunctions, func(dropped []byte) bool { return bytes.Equal(dropped, f.GetHash()) })
			if len(m.DroppedFunctions) == was { // otherwise the process has not been told yet to forget it
				m.Functions = append(m.Functions, f)
			}
		}
	}
	run := &executorv1.ExecutorRun{
		TaskId: uint64(r.Ref.Task), Attempt: uint32(r.Ref.Attempt), OpId: p.opNumber(m, r.Op), Arguments: r.Arguments, Inputs: p.locate(m, q),
		Key: r.Key, Namespace: r.Namespace, TimeoutMillis: uint64(r.Timeout / time.Millisecond), Priority: r.Priority,
	}
	if p.supportsSplitRuns && messageSize(r) > partBytes {
		m.Runs = append(m.Runs, splitRun(run)...)
	} else {
		m.Runs = append(m.Runs, run)
	}
	select {
	case p.working <- struct{}{}:
	default:
	}
}

// opNumber returns the process's number of an op, and defines the op at its first use.
// Each session defines the ops again, so the same op may come as several messages.
func (p *process) opNumber(m *executorv1.ToExecutor, op *millracev1.Op) uint32 {
	if n, ok := p.ops[op]; ok {
		return n
	}
	name := opName{op.GetKind(), op.GetName(), string(op.GetFunction())}
	n, ok := p.opNames[name]
	if !ok {
		p.lastOp++
		n = p.lastOp
		p.opNames[name] = n
		m.Ops = append(m.Ops, &executorv1.OpDefinition{OpId: n, Op: op})
	}
	p.ops[op] = n
	return n
}

// opName identifies an op; function is the hash of a pickled function.
type opName struct {
	kind           millracev1.OpKind
	name, function string
}

// dropFunctions makes the process forget functions that no task refers to any more. REQUIRES:
// slot.mu is held.
func (p *process) dropFunctions(hashes [][]byte) {
	for _, hash := range hashes {
		if len(hash) != len(ids.FunctionHash{}) || !p.sentFunc[ids.FunctionHash(hash)] {
			continue
		}
		delete(p.sentFunc, ids.FunctionHash(hash))
		// The process also forgets the ops that run the function. If such an op is needed again,
		// it gets another number.
		maps.DeleteFunc(p.opNames, func(name opName, _ uint32) bool { return name.function == string(hash) })
		maps.DeleteFunc(p.ops, func(op *millracev1.Op, _ uint32) bool { return bytes.Equal(op.GetFunction(), hash) })
		m := p.queue()
		m.DroppedFunctions = append(m.DroppedFunctions, hash)
	}
}

// cancel asks the process to drop a run that has not begun. REQUIRES: slot.mu is held.
func (p *process) cancel(q *queued) {
	m := p.queue()
	m.Cancellations = append(m.Cancellations, &executorv1.AttemptRef{TaskId: uint64(q.run.Ref.Task), Attempt: uint32(q.run.Ref.Attempt)})
}

// keptBuffer is the largest buffer that a process keeps for its next message: a longer message is
// rare, and its memory is given back.
const keptBuffer = 4 << 20

// write is the goroutine that sends hello, and then the messages that have accumulated.
func (p *process) write(hello *executorv1.ExecutorHello) {
	defer p.reading.Done()
	first := &executorv1.ToExecutor{Hello: hello}
	_ = proto.Size(first) // caches the sizes of the parts
	buffer := p.writePart(first, nil, nil)
	if buffer == nil {
		return
	}
	for {
		select {
		case <-p.outgoing:
		case <-p.broken:
			return
		}
		p.slot.mu.Lock()
		m, rights := p.pending, p.rights
		p.pending, p.rights = nil, nil
		p.slot.mu.Unlock()
		if m == nil {
			continue
		}
		for _, part := range parts(m) {
			if buffer = p.writePart(part, rights, buffer); buffer == nil {
				return
			}
			rights = nil // they were sent with the first part
		}
		if cap(buffer) > keptBuffer {
			buffer = nil
		}
	}
}

// writePart sends one message. It returns the buffer for reuse, nil if the link is broken.
// REQUIRES: the message sizes were computed (proto.Size), because they are taken from the cache.
func (p *process) writePart(m *executorv1.ToExecutor, rights []int, buffer []byte) []byte {
	buffer = append(buffer[:0], 0, 0, 0, 0)
	buffer, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(buffer, m)
	if err != nil {
		p.breakOff(fmt.Errorf("a message for it could not be encoded: %w", err))
		return nil
	}
	binary.LittleEndian.PutUint32(buffer, uint32(len(buffer)-4))
	if err := writeMessage(p.conn, buffer, rights); err != nil {
		p.breakOff(nil) // the process is gone; its exit status is the reason
		return nil
	}
	return buffer
}

// restTimeout is how long the rest of a message may take after its first bytes.
// Without it, a task that writes to the link itself could block the reader.
const restTimeout = 30 * time.Second

// read is the goroutine that handles the messages of the process.
func (p *process) read() {
	defer p.reading.Done()
	var head [4]byte
	var buffer []byte
	isReady := false
	for {
		if _, err := io.ReadFull(p.conn, head[:]); err != nil {
			p.breakOff(nil)
			return
		}
		n := binary.LittleEndian.Uint32(head[:])
		if n > maxMessageBytes {
			p.breakOff(fmt.Errorf("it announced a message of %d bytes, and %d are allowed", n, maxMessageBytes))
			return
		}
		if uint32(cap(buffer)) < n {
			buffer = make([]byte, n)
		}
		p.readWithin(time.Now().Add(restTimeout))
		if got, err := io.ReadFull(p.conn, buffer[:n]); errors.Is(err, os.ErrDeadlineExceeded) {
			p.breakOff(fmt.Errorf("it announced a message of %d bytes, and %d came within %v", n, got, restTimeout))
			return
		} else if err != nil {
			p.breakOff(nil)
			return
		}
		p.readWithin(time.Time{})
		var m executorv1.FromExecutor
		if err := proto.Unmarshal(buffer[:n], &m); err != nil {
			p.breakOff(fmt.Errorf("it sent what is not a FromExecutor message: %w", err))
			return
		}
		if r := m.GetReady(); r != nil && !isReady {
			if r.GetProtocolVersion() != protocol {
				p.breakOff(fmt.Errorf("it speaks version %d of the protocol, and %d is spoken here", r.GetProtocolVersion(), protocol))
				return
			}
			if p.pools.config.Device != nil && !r.GetDeviceOpened() {
				p.breakOff(errors.New("it did not say that it opened the slab, which lies on a GPU (ready.device_opened); executors of that kind belong on workers with host memory"))
				return
			}
			isReady, p.supportsSegments, p.supportsSplitRuns, p.supportsSpare = true, r.GetSupportsSegments(), r.GetSupportsSplitRuns(), r.GetSupportsSpare()
			p.supportsCalls, p.writesCalled = r.GetSupportsCalls(), r.GetWritesCalled()
			p.page.Ready(p.writesCalled)
			p.language = text.Valid(r.GetLanguage())
			close(p.ready)
		}
		select {
		case <-p.joined:
		default:
			select {
			case <-p.joined:
			case <-p.broken:
				return // it ended while it was still a spare process
			}
		}
		if err := p.handle(&m); err != nil {
			p.breakOff(err)
			return
		}
	}
}
