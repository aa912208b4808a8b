package templates

import (
	"encoding/binary"
	"math/bits"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/functions"
	"github.com/millrace/millrace/server/sched"
)

// Hash is the SHA-256 of a serialised template.
type Hash = ids.FunctionHash

// Template is a graph with holes. It does not change after it is made, so all goroutines may use
// it.
type Template struct {
	Hash Hash
	// Ops and Options are the tables to which the tasks refer. Used says for each op whether a task
	// refers to it. Functions are those that the definition contained.
	Ops       []sched.OpSpec
	Used      []bool
	Options   []sched.Options
	Functions []functions.Function
	Tasks     []Task
	// Values are the holes in arguments, and Inputs the names of the holes for inputs.
	Values []Value
	Inputs []string
	// Bytes is the memory of the template.
	Bytes int64

	// held are the indices of the tasks with Hold.
	held []int
	// keyBytes is the length of all keys, and longest of the longest one. inputs counts the inputs
	// of all tasks, and inner those that are tasks of the template. holed counts the tasks with
	// holes in their arguments.
	keyBytes, longest, inputs, inner int
	// fixed is the memory of an instance without its prefix, values and inputs. valueUses and
	// inputUses count how often each of these is used.
	fixed                int64
	valueUses, inputUses []int64
}

// Value is a hole in arguments.
type Value struct {
	// Name is for people. Task is the key of the first task that has the hole; empty: no task has
	// it.
	Name, Task string
	// Type is the number of the only field that its values may have. 0: all.
	Type int32
}

// Task is a task of a template. Its other fields are as in sched.TaskSpec.
type Task struct {
	// Key is the end of its key in each instance.
	Key string
	// Op is an index into Template.Ops, and Options one into Template.Options plus 1; 0: defaults.
	Op, Options uint32
	Inputs      []Input
	Items       []sched.ItemInput
	// Arguments are the arguments if they have no holes. All instances share them.
	Arguments []byte
	// Pieces are the arguments if they have holes, else nil.
	Pieces []Piece
	Hold   bool
}

// Input is the index of a task in the template, if it is not negative, else the complement of the
// index of a hole for inputs.
type Input int32

// Hole returns the input that is a hole.
func Hole(index int) Input { return Input(^index) }

// Piece is a part of serialised arguments.
type Piece struct {
	// Literal are bytes that are the same in each instance. Empty: one of the others is set.
	Literal []byte
	// Inside are the parts of a message, whose length comes before them.
	Inside []Piece
	// Hole is an index into Template.Values, if Literal and Inside are empty: the value is here,
	// with its length before it.
	Hole uint32
}

const (
	// TaskBytes is the approximate size of a task without its texts and arguments.
	TaskBytes = 128
	// InputBytes is that of an input without its key.
	InputBytes = 16
	pieceBytes = 64
)

// Seal computes what Expand and the limits need. REQUIRES: all indices in the template are valid.
func (t *Template) Seal() {
	t.valueUses, t.inputUses = make([]int64, len(t.Values)), make([]int64, len(t.Inputs))
	for i := range t.Tasks {
		task := &t.Tasks[i]
		t.keyBytes += len(task.Key)
		t.longest = max(t.longest, len(task.Key))
		t.inputs += len(task.Inputs)
		t.fixed += int64(TaskBytes + len(task.Key) + len(task.Arguments) + InputBytes*len(task.Inputs))
		for _, in := range task.Inputs {
			if in < 0 {
				t.inputUses[^in]++
				continue
			}
			t.inner++
			t.fixed += int64(len(t.Tasks[in].Key))
		}
		pieces := t.measure(task.Pieces, task.Key)
		t.fixed += pieces
		t.Bytes += pieces
		if task.Hold {
			t.held = append(t.held, i)
		}
	}
	t.Bytes += t.fixed
	for _, op := range t.Ops {
		t.Bytes += int64(TaskBytes + len(op.Name))
	}
	t.Bytes += int64(4 * TaskBytes * len(t.Options))
	for _, f := range t.Functions {
		t.Bytes += int64(TaskBytes + len(f.Payload))
	}
	for _, v := range t.Values {
		t.Bytes += int64(TaskBytes + len(v.Name))
	}
	for _, name := range t.Inputs {
		t.Bytes += int64(TaskBytes + len(name))
	}
}

// measure returns the memory of pieces, and counts the uses of holes.
func (t *Template) measure(pieces []Piece, task string) int64 {
	bytes := int64(0)
	for i := range pieces {
		p := &pieces[i]
		bytes += int64(pieceBytes + len(p.Literal))
		switch {
		case len(p.Literal) > 0:
		case p.Inside != nil:
			bytes += t.measure(p.Inside, task)
		default:
			t.valueUses[p.Hole]++
			if v := &t.Values[p.Hole]; v.Task == "" {
				v.Task = task
			}
		}
	}
	return bytes
}

// Held returns the indices of the tasks with Hold.
func (t *Template) Held() []int { return t.held }

// Longest returns the length of the longest key.
func (t *Template) Longest() int { return t.longest }

// Instance is what one instance adds to its template.
type Instance struct {
	// Prefix is the beginning of its keys, in two parts.
	Prefix, Key string
	// Values are the serialised values of the holes in arguments.
	Values [][]byte
	// Inputs are the keys in the holes for inputs.
	Inputs []string
}

// BytesOf returns the approximate memory of the tasks of an instance. REQUIRES: it has as many
// values and inputs as the template has holes.
func (t *Template) BytesOf(in *Instance) int64 {
	bytes := t.fixed + int64(len(in.Prefix)+len(in.Key))*int64(len(t.Tasks)+t.inner)
	for i, v := range in.Values {
		bytes += t.valueUses[i] * int64(len(v))
	}
	for i, key := range in.Inputs {
		bytes += t.inputUses[i] * int64(len(key))
	}
	return bytes
}

// Expansion makes the tasks of instances. It is not safe for concurrent use.
type Expansion struct {
	keys  []byte
	sizes []int
}

// Append appends the tasks of an instance. ops and options are the numbers of ops and options
// before those of the template in the tables of the submission. REQUIRES: as for BytesOf.
func (x *Expansion) Append(tasks []sched.TaskSpec, t *Template, in *Instance, ops, options uint32) []sched.TaskSpec {
	// All keys are parts of one string, and all lists of inputs of one array.
	x.keys = x.keys[:0]
	for i := range t.Tasks {
		x.keys = append(append(append(x.keys, in.Prefix...), in.Key...), t.Tasks[i].Key...)
	}
	keys, prefix := string(x.keys), len(in.Prefix)+len(in.Key)
	inputs := make([]string, t.inputs)
	first := len(tasks)
	for i := range t.Tasks {
		task := &t.Tasks[i]
		n := prefix + len(task.Key)
		spec := sched.TaskSpec{Key: keys[:n], Op: task.Op + ops, Items: task.Items, Arguments: task.Arguments, Hold: task.Hold}
		keys = keys[n:]
		if task.Options != 0 {
			spec.Options = task.Options + options
		}
		if len(task.Inputs) > 0 {
			spec.Inputs, inputs = inputs[:len(task.Inputs):len(task.Inputs)], inputs[len(task.Inputs):]
		}
		if task.Pieces != nil {
			spec.Arguments = x.arguments(task.Pieces, in.Values)
		}
		tasks = append(tasks, spec)
	}
	for i := range t.Tasks {
		spec := &tasks[first+i]
		for k, from := range t.Tasks[i].Inputs {
			if from < 0 {
				spec.Inputs[k] = in.Inputs[^from]
			} else {
				spec.Inputs[k] = tasks[first+int(from)].Key
			}
		}
	}
	return tasks
}

// arguments puts values into the holes. First it computes the lengths of all messages, in the order
// in which they begin, because each comes before what it counts.
func (x *Expansion) arguments(pieces []Piece, values [][]byte) []byte {
	x.sizes = x.sizes[:0]
	made := make([]byte, 0, x.size(pieces, values))
	made, _ = write(made, pieces, values, x.sizes)
	return made
}

func (x *Expansion) size(pieces []Piece, values [][]byte) int {
	size := 0
	for i := range pieces {
		p := &pieces[i]
		switch {
		case len(p.Literal) > 0:
			size += len(p.Literal)
		case p.Inside != nil:
			at := len(x.sizes)
			x.sizes = append(x.sizes, 0)
			n := x.size(p.Inside, values)
			x.sizes[at] = n
			size += lengthBytes(n) + n
		default:
			n := len(values[p.Hole])
			size += lengthBytes(n) + n
		}
	}
	return size
}

func write(made []byte, pieces []Piece, values [][]byte, sizes []int) (whole []byte, rest []int) {
	for i := range pieces {
		p := &pieces[i]
		switch {
		case len(p.Literal) > 0:
			made = append(made, p.Literal...)
		case p.Inside != nil:
			made = binary.AppendUvarint(made, uint64(sizes[0]))
			made, sizes = write(made, p.Inside, values, sizes[1:])
		default:
			made = binary.AppendUvarint(made, uint64(len(values[p.Hole])))
			made = append(made, values[p.Hole]...)
		}
	}
	return made, sizes
}

// lengthBytes is the size of a length as a varint.
func lengthBytes(n int) int { return (bits.Len64(uint64(n)|1) + 6) / 7 }
