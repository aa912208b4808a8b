package loop

import (
	"fmt"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
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

// inputID names the object of the store that is, or will be, pinned for an input.
func (a *attempt) inputID(i int) ledger.ObjectID {
	id := ledger.ObjectID(a.in(i).Object)
	if a.inWhole(i) {
		return listOf(id)
	}
	return id
}

// inWhole says whether an input is an item of a list that is here.
func (a *attempt) inWhole(i int) bool { return a.whole != nil && a.whole[i] }

// enter enters an object of the store as an input: the input itself or, for an item, maybe the
// whole list.
func (a *attempt) enter(i int, o store.Object) {
	item := a.in(i).Object.Item
	a.inputs[i] = device.Input{Header: o.Header, Frames: o.Frames}
	if o.ID.Item == item {
		return
	}
	if a.whole == nil {
		a.whole = make([]bool, len(a.inputs))
	}
	a.whole[i] = true
	a.inputs[i] = narrowed(a.inputs[i], item)
}

// narrowed returns an item of a list; the list itself if item is 0. A list whose header is not
// known yet (store.Object.HeaderAt) stays as it is.
func narrowed(list device.Input, item ids.Item) device.Input {
	if item == 0 || list.Header == nil {
		return list
	}
	header, numbers := value.Item(list.Header, len(list.Frames), item)
	part := device.Input{Header: header, Frames: make([]memory.Frame, len(numbers)), Space: list.Space}
	for i, n := range numbers {
		part.Frames[i] = list.Frames[n]
	}
	return part
}

// absentItem returns the reason why an attempt cannot run, and the input, counted from 1: it is to
// be an item that its list does not have. REQUIRES: the headers of all inputs are known.
func (a *attempt) absentItem() (input uint32, fault *millracev1.TaskError) {
	for i := range a.inputs {
		item := a.in(i).Object.Item
		if item == 0 {
			continue
		}
		if why, absent := value.Absent(a.inputs[i].Header); absent {
			return uint32(i) + 1, &millracev1.TaskError{Reason: "INVALID_ARGUMENT", Message: fmt.Sprintf(
				"the result %s, so that there is no item %d (counted from 0): make that task return a list with this item, or ask for another item", why, item-1)}
		}
	}
	return 0, nil
}
