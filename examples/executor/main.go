// Command executor is an example: an executor with one function, the mean of an array. It is the
// first version that docs/executor-protocol.md describes, for workers with host memory.
//
//	go build -o stats ./examples/executor
//	millrace up --exec stats=$PWD/stats
//
// A task calls it by the op stats/mean: millrace.Exec("stats/mean") in Go,
// millrace.ExecutorOp("stats/mean") in Python. Its argument is the result of another task.
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	executorv1 "github.com/millrace/millrace/gen/go/millrace/executor/v1"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

const (
	version = 1
	// maxMessage is the size of the longest message.
	maxMessage = 64 << 20
	// controlBytes is the size of the control page. beginAt and endAt are the offsets of its words
	// begun and ended.
	controlBytes   = 4096
	beginAt, endAt = 0, 8
)

func main() {
	signal.Ignore(syscall.SIGINT)
	err := serve(os.NewFile(3, "link"))
	if err != nil && !errors.Is(err, io.EOF) { // At the end of the link the worker is gone.
		fmt.Fprintln(os.Stderr, "stats:", err)
		os.Exit(1)
	}
}

type executor struct {
	link *os.File
	// slab is mapped for reading only: results of this program are numbers, which need no memory.
	slab, control []byte
	// ops are the names of the ops by number.
	ops map[uint32]string
	// ordinal counts the runs.
	ordinal uint64
}

// serve handles the messages of a worker until it sends shutdown.
func serve(link *os.File) error {
	e := &executor{link: link, ops: make(map[uint32]string)}
	for _, fd := range []int{3, 4, 5} {
		unix.CloseOnExec(fd)
	}
	first, err := e.receive()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	if hello.GetProtocolVersion() != version {
		fmt.Fprintf(os.Stderr, "stats: it speaks version %d of the executor protocol, the worker version %d\n", version, hello.GetProtocolVersion())
		os.Exit(64)
	}
	if e.slab, err = unix.Mmap(4, 0, int(hello.GetSlabBytes()), unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("the slab: %w", err)
	}
	if e.control, err = unix.Mmap(5, 0, controlBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("the control page: %w", err)
	}
	ready := &executorv1.ExecutorReady{ProtocolVersion: version, Language: runtime.Version()}
	if err := e.send(&executorv1.FromExecutor{Ready: ready}); err != nil {
		return err
	}
	for {
		message, err := e.receive()
		if err != nil {
			return err
		}
		for _, definition := range message.GetOps() {
			e.ops[definition.GetOpId()] = definition.GetOp().GetName()
		}
		for _, run := range message.GetRuns() {
			e.ordinal++
			e.store(beginAt, e.ordinal)
			finished := e.run(run)
			e.store(endAt, e.ordinal)
			if err := e.send(&executorv1.FromExecutor{Finished: []*executorv1.ExecutorFinished{finished}}); err != nil {
				return err
			}
		}
		if message.GetShutdown() {
			return nil
		}
	}
}

func (e *executor) run(r *executorv1.ExecutorRun) *executorv1.ExecutorFinished {
	finished := &executorv1.ExecutorFinished{TaskId: r.GetTaskId(), Attempt: r.GetAttempt()}
	fail := func(reason, format string, values ...any) *executorv1.ExecutorFinished {
		finished.Error = &millracev1.TaskError{Reason: reason, Message: fmt.Sprintf(format, values...)}
		return finished
	}
	if name := e.ops[r.GetOpId()]; name != "stats/mean" {
		return fail("FUNCTION_NOT_FOUND", "there is no %s: this executor has stats/mean", name)
	}
	var arguments millracev1.Arguments
	if err := proto.Unmarshal(r.GetArguments(), &arguments); err != nil {
		return fail("INVALID_ARGUMENT", "the arguments: %v", err)
	}
	positional := arguments.GetPositional()
	if len(positional) != 1 || len(arguments.GetNamed()) > 0 || arguments.GetCall() != nil {
		return fail("INVALID_ARGUMENT", "stats/mean takes one argument, without a name")
	}
	reference, ok := positional[0].GetKind().(*millracev1.Value_Input)
	if !ok {
		return fail("INVALID_ARGUMENT", "the argument of stats/mean is the result of another task, and not %v", positional[0])
	}
	numbers, err := e.numbers(r.GetInputs()[reference.Input])
	if err != nil {
		return fail("INPUT_UNREADABLE", "argument 0 of stats/mean: %v", err)
	}
	began := time.Now()
	sum := 0.0
	for number := range slices.Chunk(numbers, 8) {
		sum += math.Float64frombits(binary.LittleEndian.Uint64(number))
	}
	finished.RunNanos = uint64(time.Since(began))
	result := &millracev1.Value{Kind: &millracev1.Value_DoubleValue{DoubleValue: sum / float64(len(numbers)/8)}}
	if finished.Header, err = proto.Marshal(result); err != nil {
		return fail("RESULT_NOT_SERIALISABLE", "the result: %v", err)
	}
	return finished
}

// numbers returns the elements of an array of float64 in C order. A large array lies in a frame in
// the slab, a small one in its header.
func (e *executor) numbers(input *executorv1.ExecutorInput) ([]byte, error) {
	var header millracev1.Value
	if err := proto.Unmarshal(input.GetHeader(), &header); err != nil {
		return nil, err
	}
	tensor := header.GetTensorValue()
	if tensor.GetDtype() != millracev1.DType_DTYPE_FLOAT64 || len(tensor.GetStrides()) > 0 {
		return nil, errors.New("not an array of float64 in C order")
	}
	bytes := uint64(8)
	for _, n := range tensor.GetShape() {
		bytes *= uint64(n)
	}
	memory := tensor.GetInlineData()
	if place, ok := tensor.GetLocation().(*millracev1.Tensor_Frame); ok {
		frame := input.GetFrames()[place.Frame]
		memory = e.slab[frame.GetOffset():][:frame.GetSizeBytes()]
	}
	return memory[tensor.GetOffsetBytes():][:bytes], nil
}

// store writes a word of the control page in one step.
func (e *executor) store(at int, ordinal uint64) {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&e.control[at])), ordinal)
}

func (e *executor) send(message *executorv1.FromExecutor) error {
	framed, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, 4), message)
	if err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(framed, uint32(len(framed)-4))
	_, err = e.link.Write(framed)
	return err
}

func (e *executor) receive() (*executorv1.ToExecutor, error) {
	var length [4]byte
	if _, err := io.ReadFull(e.link, length[:]); err != nil {
		return nil, err
	}
	size := binary.LittleEndian.Uint32(length[:])
	if size > maxMessage {
		return nil, fmt.Errorf("a message of %d bytes", size)
	}
	serialised := make([]byte, size)
	if _, err := io.ReadFull(e.link, serialised); err != nil {
		return nil, err
	}
	message := new(executorv1.ToExecutor)
	return message, proto.Unmarshal(serialised, message)
}
