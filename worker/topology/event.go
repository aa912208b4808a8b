package topology

import (
	"fmt"
	"slices"
)

// EventKind is the kind of an event of a GPU.
type EventKind int

// The kinds of events. An Xid is an error that the driver reports in the kernel's log. ECC is a
// memory error that could not be corrected.
const (
	Xid EventKind = iota
	ECC
)

// Event is an error event of a GPU that NVML reports.
type Event struct {
	// UUID is the UUID of the GPU, "" for an event of all GPUs.
	UUID string
	// Instances are the UUIDs of the MIG instances that the event concerns, if the GPU is divided
	// into such instances.
	Instances []string
	Kind      EventKind
	// Xid is the number of an Xid event.
	Xid uint64
}

// Of reports whether the event names this device, which may be a MIG instance. An event without a
// UUID concerns all devices, and Of is false for it: each worker then checks its own device.
func (e Event) Of(uuid string) bool {
	return e.UUID != "" && (e.UUID == uuid || slices.Contains(e.Instances, uuid))
}

// Verdict is the reaction of a worker to an event of its GPU.
type Verdict int

const (
	// Harmless: the event is a fault of one program and ends only that program's context, or it is
	// only informative.
	Harmless Verdict = iota
	// Doubtful: the worker checks whether its own context and memory are undamaged. Xids that are
	// not in the table are doubtful.
	Doubtful
	// Drain: the GPU still works, but needs a reset before it is reliable again. The worker leaves
	// in an orderly way.
	Drain
	// Fatal: no program on the GPU can continue.
	Fatal
)

// String returns a name for logs.
func (v Verdict) String() string {
	return [...]string{"harmless", "doubtful", "drain", "fatal"}[v]
}

// xid is the information about one Xid number.
type xid struct {
	verdict Verdict
	// poison says that memory of the GPU may be wrong, or that a read of it may fail. This concerns
	// readers on other GPUs, too.
	poison bool
	text   string
}

// xids follows NVIDIA's catalogue, https://docs.nvidia.com/deploy/xid-errors/ : its immediate
// action (nothing, restart the application, reset the GPU), applied to a worker that is one of
// several applications on the GPU.
var xids = map[uint64]xid{
	13: {Harmless, false, "a program's kernel failed"},
	31: {Harmless, false, "a program used an address that is not mapped"},
	32: {Harmless, false, "a program's commands were not valid"},
	43: {Harmless, false, "a program's work was stopped"},
	45: {Harmless, false, "a program's work was cleaned up"},
	46: {Doubtful, false, "the GPU stopped processing"},
	// The program that read the memory has lost its context.
	48:  {Doubtful, true, "a memory error that ECC could not correct"},
	61:  {Doubtful, false, "a breakpoint of the GPU's own processor"},
	62:  {Fatal, true, "the GPU's own processor has halted"},
	63:  {Harmless, false, "a row of memory will be remapped at the next reset"},
	64:  {Drain, true, "a row of memory could not be remapped: the GPU needs a reset"},
	68:  {Harmless, false, "video decoder"},
	69:  {Harmless, false, "a program's graphics commands failed"},
	73:  {Harmless, false, "video encoder"},
	74:  {Doubtful, true, "NVLink error"},
	79:  {Fatal, true, "the GPU has fallen off the bus"},
	92:  {Harmless, false, "many memory errors that ECC has corrected"},
	94:  {Doubtful, true, "a contained memory error: the program that met it has lost its context"},
	95:  {Fatal, true, "an uncontained memory error"},
	109: {Doubtful, false, "a context switch timed out"},
	110: {Doubtful, false, "a security fault"},
	119: {Doubtful, false, "the GPU's own processor does not answer"},
	120: {Doubtful, false, "the GPU's own processor failed"},
	121: {Harmless, false, "an error of the link to the processor was corrected"},
	137: {Harmless, false, "a program read over NVLink what was not mapped any more"},
	140: {Drain, true, "a memory error that was not recovered from: the GPU needs a reset"},
	143: {Fatal, true, "the GPU could not be initialised"},
	154: {Doubtful, false, "what the driver advises for the GPU has changed: see nvidia-smi -q, GPU Recovery Action"},
	156: {Harmless, false, "a resource of the GPU will be retired at the next reset"},
	157: {Drain, true, "a resource of the GPU could not be retired: the GPU needs a reset"},
	158: {Fatal, true, "a fatal timeout of the GPU"},
}

// Verdict returns the reaction of a worker to an event of its own GPU.
func (e Event) Verdict() Verdict {
	if e.Kind != Xid {
		return Doubtful // the driver also reports an Xid, which says how serious the error is
	}
	if x, known := xids[e.Xid]; known {
		return x.verdict
	}
	return Doubtful
}

// Poisons reports whether other workers must not read the GPU's memory: it may be wrong, and a read
// may destroy the reader's own context.
func (e Event) Poisons() bool { return e.Kind != Xid || xids[e.Xid].poison }

// String returns a description for users.
func (e Event) String() string {
	gpu := e.UUID
	if gpu == "" {
		gpu = "all GPUs"
	}
	if e.Kind != Xid {
		return gpu + ": a memory error that ECC could not correct"
	}
	text := xids[e.Xid].text
	if text == "" {
		text = "see NVIDIA's catalogue of Xid errors"
	}
	return fmt.Sprintf("%s: Xid %d: %s", gpu, e.Xid, text)
}
