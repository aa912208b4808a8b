package loop

import (
	"fmt"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/store"
	"github.com/millrace/millrace/worker/value"
)

// An input may be one item of a list. If the list is here, the attempt pins it and reads the item
// in place. Otherwise the item alone is fetched or borrowed, as an object of its own: the peer
// sends its header and its frames. A fetched copy of an item serves the attempts that wait for it;
// it is not reported to the scheduler and is dropped with the last of them. In both cases the
// operation sees the item as an ordinary input.

// listID names the object of an input: for an item, the whole list.
func listID(in *workerv1.Input) ledger.ObjectID {
	return ledger.ObjectID{Task: ids.TaskID(in.GetTaskId()), Generation: ids.Attempt(in.GetGeneration())}
}

// inputID names an input as it is fetched: an object, or one item of it.
func inputID(in *workerv1.Input) ledger.ObjectID {
	id := listID(in)
	id.Item = ids.Item(in.GetItem())
	return id
}

// inputBytes is the expected size of an input.
func inputBytes(in *workerv1.Input) uint64 {
	bytes, count := in.GetBytes(), uint64(in.GetItemCount())
	if in.GetItem() == 0 || count == 0 {
		return bytes
	}
	return (bytes + count - 1) / count
}

// inputID names the object of the store that is, or will be, pinned for an input.
func (a *attempt) inputID(i int) ledger.ObjectID {
	id := inputID(a.pb.GetInputs()[i])
	if a.inWhole(i) {
		id.Item = 0
	}
	return id
}

// inWhole says whether an input is an item of a list that is here.
func (a *attempt) inWhole(i int) bool { return a.whole != nil && a.whole[i] }

// found enters an object of the store as an input: the input itself or, for an item, maybe the
// whole list.
func (a *attempt) found(i int, o store.Object) {
	in := a.pb.GetInputs()[i]
	a.inputs[i] = device.Input{Header: o.Header, Frames: o.Frames}
	if o.ID.Item == ids.Item(in.GetItem()) {
		return
	}
	if a.whole == nil {
		a.whole = make([]bool, len(a.inputs))
	}
	a.whole[i] = true
	a.inputs[i] = narrowed(a.inputs[i], in)
}

// narrowed returns the item of a list that the attempt needs; the list itself if it needs all of
// it. A list whose header is not known yet (store.Object.HeaderAt) stays as it is.
func narrowed(list device.Input, in *workerv1.Input) device.Input {
	if in.GetItem() == 0 || list.Header == nil {
		return list
	}
	header, numbers := value.Item(list.Header, len(list.Frames), ids.Item(in.GetItem()))
	item := device.Input{Header: header, Frames: make([]memory.Frame, len(numbers)), Space: list.Space}
	for i, n := range numbers {
		item.Frames[i] = list.Frames[n]
	}
	return item
}

// absentItem returns the reason why an attempt cannot run, and the input, counted from 1: it is to
// be an item that its list does not have. REQUIRES: the headers of all inputs are known.
func (a *attempt) absentItem() (input uint32, fault *millracev1.TaskError) {
	for i, in := range a.pb.GetInputs() {
		if in.GetItem() == 0 {
			continue
		}
		if why, absent := value.Absent(a.inputs[i].Header); absent {
			return uint32(i) + 1, &millracev1.TaskError{Reason: "INVALID_ARGUMENT", Message: fmt.Sprintf(
				"the result %s, so that there is no item %d (counted from 0): make that task return a list with this item, or ask for another item", why, in.GetItem()-1)}
		}
	}
	return 0, nil
}
