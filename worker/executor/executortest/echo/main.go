// Package main is Test support: a small executor in Go. It shows that the executor protocol does
// not need Python, and it tests the worker's side of the protocol by misbehaving in many ways.
//
// Some operations (upper, slab, alias, sum and similar ones) return something;
// the others fail, wait, write logs or die. Environment variables set its capabilities.
// ECHO_SEGMENTS: it understands segments if the value is "yes", or if the value is the name of a
// pipe from which it reads "yes" at its start. ECHO_DEVICE: if it is "yes", the process answers
// that it opened a slab on a GPU, but it never touches the slab. ECHO_SPLIT_RUNS: if it is "no",
// the process does not understand runs that are split over several messages. ECHO_CALLS: if it is
// "no", the process does not understand calls. ECHO_START: if it is
// set, the process fails before it is ready.
package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	executorv1 "github.com/millrace/millrace/gen/go/millrace/executor/v1"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

func main() {
	if mode := os.Getenv("ECHO_START"); mode != "" {
		fmt.Fprintln(os.Stderr, "echo: told to fail at the start:", mode)
		os.Exit(3)
	}
	for _, fd := range []int{3, 4, 5} {
		unix.CloseOnExec(fd)
	}
	e := &executor{link: &link{File: os.NewFile(3, "link")}, segments: make(map[uint32][]byte), ops: make(map[uint32]string), functions: make(map[string]bool), wake: make(chan struct{}, 1), interrupts: make(chan os.Signal, 1)}
	e.answered = sync.NewCond(&e.mu)
	if err := e.run(); err != nil && !errors.Is(err, io.EOF) {
		fmt.Fprintln(os.Stderr, "echo:", err)
		os.Exit(1)
	}
}

type pending struct {
	*executorv1.ExecutorRun
	ordinal uint64
}

type executor struct {
	link       *link
	slab       []byte
	page       []byte
	device     *executorv1.ExecutorDevice
	interrupts chan os.Signal
	wake       chan struct{}

	sending sync.Mutex
	// piece is a run whose remaining inputs follow in further messages, nil if there is none.
	// It belongs to the reading goroutine.
	piece *executorv1.ExecutorRun
	// dying: the process ends after its next answer. It belongs to the main goroutine.
	dying bool
	// releasing are the leases to release with the next answer. It belongs to the main goroutine.
	releasing []*executorv1.ExecutorRelease

	mu       sync.Mutex
	segments map[uint32][]byte
	answered *sync.Cond
	ops      map[uint32]string
	queue    []pending
	ordinal  uint64
	allocs   []*executorv1.ExecutorAllocation
	// functions are the hashes of the functions that the process was sent and not told to forget.
	functions map[string]bool
	shutdown  bool
	closed    error
}

func (e *executor) run() error {
	first, err := e.receive()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	if hello.GetProtocolVersion() != 1 {
		fmt.Fprintln(os.Stderr, "echo: cannot speak version", hello.GetProtocolVersion())
		os.Exit(64)
	}
	dieOften(os.Getenv("ECHO_KILLED_STARTS"))
	device := hello.GetDevice() != nil
	if device {
		e.device = hello.GetDevice()
	} else if e.slab, err = unix.Mmap(4, 0, int(hello.GetSlabBytes()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return err
	}
	if e.page, err = unix.Mmap(5, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return err
	}
	signal.Notify(e.interrupts, syscall.SIGINT)
	segments := os.Getenv("ECHO_SEGMENTS")
	if strings.HasPrefix(segments, "/") {
		b, err := os.ReadFile(segments)
		if err != nil {
			return err
		}
		segments = string(b)
	}
	if err := e.send(&executorv1.FromExecutor{Ready: &executorv1.ExecutorReady{ProtocolVersion: 1, Language: runtime.Version(), SupportsSegments: segments == "yes", SupportsSplitRuns: os.Getenv("ECHO_SPLIT_RUNS") != "no", SupportsCalls: os.Getenv("ECHO_CALLS") != "no", WritesCalled: os.Getenv("ECHO_CALLED") == "yes", DeviceOpened: device && os.Getenv("ECHO_DEVICE") == "yes"}}); err != nil {
		return err
	}
	go e.read()
	for {
		e.mu.Lock()
		if e.closed != nil || e.shutdown && len(e.queue) == 0 {
			e.mu.Unlock()
			return e.closed
		}
		if len(e.queue) == 0 {
			e.mu.Unlock()
			<-e.wake
			continue
		}
		r := e.queue[0]
		e.queue = e.queue[1:]
		op := e.ops[r.GetOpId()]
		e.mu.Unlock()
		if _, name, _ := strings.Cut(op, "/"); name == "early" { // die before the run begins, unless an earlier process did (it made the directory)
			if in, err := e.inputs(r); err != nil || os.Mkdir(string(in[0]), 0o700) == nil || string(in[0]) == "" {
				os.Exit(6)
			}
		}
		e.store(0, r.ordinal)
		if _, name, _ := strings.Cut(op, "/"); name == "load" { // as if it loaded what the function needs
			if in, err := e.inputs(r); err == nil {
				dieOften(string(in[0]))
			}
		}
		if os.Getenv("ECHO_CALLED") == "yes" {
			e.store(24, r.ordinal)
		}
		begin := time.Now()
		f := e.execute(op, r)
		f.TaskId, f.Attempt, f.RunNanos = r.GetTaskId(), r.GetAttempt(), uint64(time.Since(begin))
		e.store(8, r.ordinal)
		if err := e.send(&executorv1.FromExecutor{Finished: []*executorv1.ExecutorFinished{f}, Releases: e.releasing}); err != nil {
			return err
		}
		e.releasing = nil
		if e.dying {
			os.Exit(9)
		}
	}
}

// dieOften kills the process as if from outside, unless five others have died of this directory.
func dieOften(directory string) {
	if directory == "" {
		return
	}
	if died, err := os.ReadDir(directory); err == nil && len(died) < 5 {
		_ = os.WriteFile(fmt.Sprint(directory, "/", os.Getpid()), nil, 0o600)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

func (e *executor) word(at int) *uint64    { return (*uint64)(unsafe.Pointer(&e.page[at])) }
func (e *executor) store(at int, v uint64) { atomic.StoreUint64(e.word(at), v) }
func (e *executor) bytes(f *executorv1.FrameLocation) []byte {
	memory := e.slab
	if f.GetSegmentId() != 0 {
		e.mu.Lock()
		memory = e.segments[f.GetSegmentId()]
		e.mu.Unlock()
	}
	return memory[f.GetOffset() : f.GetOffset()+f.GetSizeBytes()]
}

func (e *executor) read() {
	for {
		m, err := e.receive()
		e.mu.Lock()
		if err != nil {
			e.closed = err
			e.mu.Unlock()
			// The worker is gone, so a running task does not matter.
			os.Exit(0)
		}
		for _, a := range m.GetAttachSegments() {
			e.segments[a.GetSegmentId()] = e.link.segment(int(a.GetSizeBytes()))
		}
		for _, d := range m.GetDetachSegments() {
			_ = unix.Munmap(e.segments[d.GetSegmentId()]) // no run reads it
			delete(e.segments, d.GetSegmentId())
		}
		for _, d := range m.GetOps() {
			e.ops[d.GetOpId()] = d.GetOp().GetName()
		}
		for _, f := range m.GetFunctions() {
			e.functions[string(f.GetHash())] = true
		}
		for _, hash := range m.GetDroppedFunctions() { // no run of this message needs them any more
			delete(e.functions, string(hash))
		}
		for _, r := range m.GetRuns() {
			if e.piece != nil {
				r.Inputs = append(e.piece.GetInputs(), r.GetInputs()...)
				e.piece.Inputs, e.piece.MoreInputs, r = r.GetInputs(), r.GetMoreInputs(), e.piece
			}
			if e.piece = nil; r.GetMoreInputs() {
				e.piece = r
				continue
			}
			e.ordinal++
			e.queue = append(e.queue, pending{r, e.ordinal})
		}
		var drops []*executorv1.ExecutorFinished
		for _, c := range m.GetCancellations() {
			// The run leaves the queue, because the same attempt may come again.
			is := func(q pending) bool { return q.GetTaskId() == c.GetTaskId() && q.GetAttempt() == c.GetAttempt() }
			if i := slices.IndexFunc(e.queue, is); i >= 0 {
				e.queue = slices.Delete(e.queue, i, i+1)
				drops = append(drops, &executorv1.ExecutorFinished{TaskId: c.GetTaskId(), Attempt: c.GetAttempt(), Error: &millracev1.TaskError{Reason: "DROPPED"}})
			}
		}
		for _, c := range m.GetCalls() {
			_ = e.send(&executorv1.FromExecutor{Returns: []*executorv1.ExecutorReturn{answer(c)}})
		}
		e.allocs = append(e.allocs, m.GetAllocations()...)
		e.shutdown = e.shutdown || m.GetShutdown()
		e.answered.Broadcast()
		if m.GetReleaseUnused() { // the answer comes before any other
			_ = e.send(&executorv1.FromExecutor{Releases: []*executorv1.ExecutorRelease{{RequestId: 1001}}})
		}
		e.mu.Unlock()
		if len(drops) > 0 {
			_ = e.send(&executorv1.FromExecutor{Finished: drops})
		}
		select {
		case e.wake <- struct{}{}:
		default:
		}
	}
}

// answer makes a call: "pid" returns the process id, "die" ends the process, and others fail.
func answer(c *executorv1.ExecutorCall) *executorv1.ExecutorReturn {
	out := &executorv1.ExecutorReturn{CallId: c.GetCallId()}
	switch _, name, _ := strings.Cut(c.GetOp().GetName(), "/"); name {
	case "pid":
		out.Header, _ = proto.Marshal(&millracev1.Value{Kind: &millracev1.Value_IntValue{IntValue: int64(os.Getpid())}})
	case "die":
		fmt.Fprintln(os.Stderr, "echo: told to die in a call")
		os.Exit(5)
	default:
		out.Error = &millracev1.TaskError{Reason: "FUNCTION_NOT_FOUND", Message: "echo has no function " + name + " to be called"}
	}
	return out
}

func (e *executor) allocate(r pending, sizes ...uint64) ([]*executorv1.FrameLocation, *millracev1.TaskError) {
	return e.ask(&executorv1.ExecutorAllocationRequest{RequestId: r.ordinal, Attempt: &executorv1.AttemptRef{TaskId: r.GetTaskId(), Attempt: r.GetAttempt()}, FrameBytes: sizes})
}

func (e *executor) ask(a *executorv1.ExecutorAllocationRequest) ([]*executorv1.FrameLocation, *millracev1.TaskError) {
	if err := e.send(&executorv1.FromExecutor{AllocationRequests: []*executorv1.ExecutorAllocationRequest{a}}); err != nil {
		return nil, &millracev1.TaskError{Reason: "EXECUTOR_ERROR", Message: err.Error()}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(e.allocs) == 0 {
		e.answered.Wait()
	}
	answer := e.allocs[0]
	e.allocs = e.allocs[1:]
	return answer.GetFrames(), answer.GetError()
}

// inputs decodes the arguments: text and small numbers as they are; inputs as the bytes of their
// first frame, or as their bytes value.
func (e *executor) inputs(r pending) (out [][]byte, err error) {
	var a millracev1.Arguments
	if err := proto.Unmarshal(r.GetArguments(), &a); err != nil {
		return nil, err
	}
	for _, v := range a.GetPositional() {
		switch k := v.GetKind().(type) {
		case *millracev1.Value_StringValue:
			out = append(out, []byte(k.StringValue))
		case *millracev1.Value_IntValue:
			out = append(out, fmt.Append(nil, k.IntValue))
		case *millracev1.Value_Input:
			in := r.GetInputs()[k.Input]
			if len(in.GetFrames()) > 0 {
				out = append(out, e.bytes(in.GetFrames()[0]))
				continue
			}
			var header millracev1.Value
			if err := proto.Unmarshal(in.GetHeader(), &header); err != nil {
				return nil, err
			}
			if t := header.GetTensorValue(); t != nil {
				out = append(out, t.GetInlineData())
			} else {
				out = append(out, []byte(header.GetStringValue()))
			}
		default:
			return nil, fmt.Errorf("an argument of type %T", k)
		}
	}
	return out, nil
}

func failure(reason, format string, values ...any) *executorv1.ExecutorFinished {
	return &executorv1.ExecutorFinished{Error: &millracev1.TaskError{Reason: reason, Message: fmt.Sprintf(format, values...)}}
}

func (e *executor) execute(op string, r pending) *executorv1.ExecutorFinished {
	in, err := e.inputs(r)
	if err != nil {
		return failure("INVALID_ARGUMENT", "%v", err)
	}
	_, name, _ := strings.Cut(op, "/")
	arg := ""
	if len(in) > 0 && len(in[0]) < 1<<20 {
		arg = string(in[0])
	}
	switch name {
	case "load":
		return text("loaded")
	case "upper":
		return text(strings.ToUpper(arg))
	case "texts": // that many texts of 30 KB each
		n, err := strconv.Atoi(arg)
		if err != nil {
			return failure("INVALID_ARGUMENT", "%v", err)
		}
		list := &millracev1.ListValue{}
		for range n {
			list.Values = append(list.Values, &millracev1.Value{Kind: &millracev1.Value_StringValue{StringValue: strings.Repeat("я", 15_000)}})
		}
		header, err := proto.Marshal(&millracev1.Value{Kind: &millracev1.Value_ListValue{ListValue: list}})
		if err != nil {
			return failure("EXECUTOR_ERROR", "%v", err)
		}
		return &executorv1.ExecutorFinished{Header: header}
	case "lengths": // the number of inputs, and the total length of their headers
		n := 0
		for _, i := range r.GetInputs() {
			n += len(i.GetHeader())
		}
		return text(fmt.Sprintf("%d inputs, %d bytes, %d of arguments", len(r.GetInputs()), n, len(r.GetArguments())))
	case "sum": // the checksum of an input
		return text(fmt.Sprint(crc32.ChecksumIEEE(in[0])))
	case "wait": // the same, after the test has written to a pipe
		if _, err := os.ReadFile(string(in[1])); err != nil {
			return failure("EXECUTOR_ERROR", "%v", err)
		}
		return text(fmt.Sprint(crc32.ChecksumIEEE(in[0])))
	case "holds": // the numbers of open descriptors and attached segments
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return failure("EXECUTOR_ERROR", "%v", err)
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		return text(fmt.Sprintf("%d descriptors, %d segments", len(entries), len(e.segments)))
	case "early":
		return text("it has begun")
	case "functions": // the number of known functions
		e.mu.Lock()
		defer e.mu.Unlock()
		return text(fmt.Sprint(len(e.functions)))
	case "pid":
		return text(fmt.Sprint(os.Getpid()))
	case "env":
		return text(os.Getenv(arg))
	case "slab": // the argument as bytes in the slab
		frames, failed := e.allocate(r, 1<<16, uint64(len(arg)))
		if failed != nil {
			return &executorv1.ExecutorFinished{Error: failed}
		}
		copy(e.bytes(frames[1]), arg)
		return tensors(frames[1:])
	case "alias": // the second half of the input, in place
		f := r.GetInputs()[0].GetFrames()[0]
		half := f.GetSizeBytes() / 2
		return tensors([]*executorv1.FrameLocation{{Offset: f.GetOffset() + half, SizeBytes: f.GetSizeBytes() - half, SegmentId: f.GetSegmentId()}})
	case "inline":
		f := tensors([]*executorv1.FrameLocation{{SizeBytes: uint64(len(arg))}})
		f.Frames, f.InlineFrames = nil, [][]byte{[]byte(arg)}
		return f
	case "misfit": // a result whose header refers to the next frame
		f := tensors([]*executorv1.FrameLocation{{}, {SizeBytes: uint64(len(arg))}})
		f.Frames, f.InlineFrames = nil, [][]byte{[]byte(arg)}
		return f
	case "steal": // a result in memory that the run does not own
		return tensors([]*executorv1.FrameLocation{{Offset: 0, SizeBytes: 4096}})
	case "huge":
		_, failed := e.allocate(r, 1<<40)
		return &executorv1.ExecutorFinished{Error: failed}
	case "device": // the description of the slab on a GPU
		return text(fmt.Sprintf("%x %s %d %v %d %s", e.device.GetMemoryHandle(), e.device.GetSlabHeader()[:8], e.device.GetArenaBytes(), e.device.GetArenaLibraries(), e.device.GetExecutorCount(), os.Getenv("CUDA_VISIBLE_DEVICES")))
	case "lease", "retain": // a result inside of a lease, which is released with the result or kept; filled with the argument's text
		n := uint64(4096 + max(4096, len(arg)))
		frames, failed := e.ask(&executorv1.ExecutorAllocationRequest{RequestId: 1000 + r.ordinal, FrameBytes: []uint64{max(n, 1<<16)}})
		if failed != nil {
			return &executorv1.ExecutorFinished{Error: failed}
		}
		at := &executorv1.FrameLocation{Offset: frames[0].GetOffset() + 4096, SizeBytes: n - 4096}
		if arg != "" {
			at.SizeBytes = uint64(len(arg))
			copy(e.bytes(at), arg)
		}
		if name == "lease" {
			e.releasing = append(e.releasing, &executorv1.ExecutorRelease{RequestId: 1000 + r.ordinal})
		}
		return tensors([]*executorv1.FrameLocation{at})
	case "hoard": // takes a lease, writes to it and keeps it
		frames, failed := e.ask(&executorv1.ExecutorAllocationRequest{RequestId: 1000 + r.ordinal, FrameBytes: []uint64{1 << 16}})
		if failed != nil {
			return &executorv1.ExecutorFinished{Error: failed}
		}
		if e.slab != nil {
			copy(e.bytes(frames[0]), bytes.Repeat([]byte{'h'}, 1<<16))
		}
		return text("")
	case "greedy": // requests more memory than is free, without waiting
		_, failed := e.ask(&executorv1.ExecutorAllocationRequest{RequestId: 1000 + r.ordinal, FrameBytes: []uint64{2 << 20}, NoWait: true})
		return &executorv1.ExecutorFinished{Error: failed}
	case "spare": // takes a lease without waiting, if no other request waits for the memory
		_, failed := e.ask(&executorv1.ExecutorAllocationRequest{RequestId: 1000 + r.ordinal, FrameBytes: []uint64{1 << 16}, NoWait: true})
		if failed != nil {
			return &executorv1.ExecutorFinished{Error: failed}
		}
		return text("")
	case "twice": // requests memory with a request number that is in use
		_, failed := e.ask(&executorv1.ExecutorAllocationRequest{RequestId: 1000 + r.ordinal, FrameBytes: []uint64{1 << 16}})
		if failed == nil {
			_, failed = e.ask(&executorv1.ExecutorAllocationRequest{RequestId: 1000 + r.ordinal, FrameBytes: []uint64{1 << 16}})
		}
		return &executorv1.ExecutorFinished{Error: failed}
	case "release": // releases the lease of the first run, or of the run in the argument
		n := uint64(1)
		if arg != "" {
			if _, err := fmt.Sscan(arg, &n); err != nil {
				return failure("EXECUTOR_ERROR", "%v", err)
			}
		}
		if err := e.send(&executorv1.FromExecutor{Releases: []*executorv1.ExecutorRelease{{RequestId: 1000 + n}, {RequestId: 4711}}}); err != nil {
			return failure("EXECUTOR_ERROR", "%v", err)
		}
		return text("")
	case "keep": // keeps the input after the end of the run
		f := text("")
		f.RetainedInputs = []*executorv1.ExecutorRetainedInput{{RequestId: 2000 + r.ordinal}, {RequestId: 3000, InputIndex: 7}}
		return f
	case "unkeep": // releases a kept input; the argument is the ordinal of the run that kept it
		var n uint64
		if _, err := fmt.Sscan(arg, &n); err != nil {
			return failure("EXECUTOR_ERROR", "%v", err)
		}
		if err := e.send(&executorv1.FromExecutor{Releases: []*executorv1.ExecutorRelease{{RequestId: 2000 + n}}}); err != nil {
			return failure("EXECUTOR_ERROR", "%v", err)
		}
		return text("")
	case "fail":
		return failure("EXECUTOR_ERROR", "told to fail: %s", arg)
	case "log":
		fmt.Println("printed", arg)
		_ = e.send(&executorv1.FromExecutor{Logs: []*executorv1.ExecutorLog{{TaskId: r.GetTaskId(), Text: "logged " + arg + "\n"}}})
		return text("")
	case "noise": // writes the first argument (hexadecimal) n times to stdout, then fails
		b, err := hex.DecodeString(arg)
		if err != nil {
			return failure("INVALID_ARGUMENT", "%v", err)
		}
		n, err := strconv.Atoi(string(in[1]))
		if err != nil {
			return failure("INVALID_ARGUMENT", "%v", err)
		}
		_, _ = os.Stdout.Write(bytes.Repeat(b, n)) // an error means that the worker is gone
		for {                                      // wait until the worker has read it, before the run ends
			if unread, err := unix.IoctlGetInt(1, unix.TIOCINQ); err != nil || unread == 0 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if len(in) > 2 && string(in[2]) == "exit" {
			os.Exit(7)
		}
		return failure("EXECUTOR_ERROR", "made noise")
	case "sleep", "stubborn":
		d, err := time.ParseDuration(arg)
		if err != nil {
			return failure("INVALID_ARGUMENT", "%v", err)
		}
		if name == "stubborn" {
			time.Sleep(d)
			return text("slept")
		}
		return e.sleep(r, d)
	case "exit":
		fmt.Fprintln(os.Stderr, "about to exit")
		os.Exit(7)
	case "segv":
		// Go would turn the signal into a panic, so another program in this process raises it.
		_ = unix.Exec("/bin/sh", []string{"sh", "-c", "kill -SEGV $$"}, nil)
	case "kill":
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		select {}
	case "garbage":
		_, _ = e.link.Write([]byte{4, 0, 0, 0, 0xff, 0xff, 0xff, 0xff})
		select {}
	case "oversized":
		_, _ = e.link.Write([]byte{0xff, 0xff, 0xff, 0xff})
		select {}
	case "idledeath": // the run succeeds, then the process dies
		e.dying = true
		return text("")
	}
	return failure("FUNCTION_NOT_FOUND", "echo has no %q", name)
}

func (e *executor) sleep(r pending, d time.Duration) *executorv1.ExecutorFinished {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return text("slept")
		case <-e.interrupts:
			if atomic.LoadUint64(e.word(16)) == r.ordinal {
				return failure("STOPPED", "interrupted")
			}
		}
	}
}

func text(s string) *executorv1.ExecutorFinished {
	header, err := proto.Marshal(&millracev1.Value{Kind: &millracev1.Value_StringValue{StringValue: s}})
	if err != nil {
		return failure("EXECUTOR_ERROR", "%v", err)
	}
	return &executorv1.ExecutorFinished{Header: header}
}

// tensors describes frames as byte tensors: one frame by itself, several as a list.
func tensors(frames []*executorv1.FrameLocation) *executorv1.ExecutorFinished {
	f := &executorv1.ExecutorFinished{Frames: frames}
	list := &millracev1.ListValue{}
	for i, l := range frames {
		list.Values = append(list.Values, &millracev1.Value{Kind: &millracev1.Value_TensorValue{TensorValue: &millracev1.Tensor{
			Dtype: millracev1.DType_DTYPE_UINT8, Shape: []int64{int64(l.GetSizeBytes())}, Location: &millracev1.Tensor_Frame{Frame: uint32(i)},
		}}})
	}
	v := &millracev1.Value{Kind: &millracev1.Value_ListValue{ListValue: list}}
	if len(frames) == 1 {
		v = list.Values[0]
	}
	header, err := proto.Marshal(v)
	if err != nil {
		return failure("EXECUTOR_ERROR", "%v", err)
	}
	f.Header = header
	return f
}

func (e *executor) send(m *executorv1.FromExecutor) error {
	b, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, 4), m)
	if err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
	e.sending.Lock()
	defer e.sending.Unlock()
	_, err = e.link.Write(b)
	return err
}

func (e *executor) receive() (*executorv1.ToExecutor, error) {
	var head [4]byte
	if _, err := io.ReadFull(e.link, head[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > 64<<20 {
		return nil, fmt.Errorf("a message of %d bytes", n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(e.link, b); err != nil {
		return nil, err
	}
	m := new(executorv1.ToExecutor)
	return m, proto.Unmarshal(b, m)
}
