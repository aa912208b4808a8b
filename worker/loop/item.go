package loop

import (
	"fmt"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/value"
)

// An input may be one item of a list. If the list is here, the attempt pins it and reads the item
// in place. Otherwise the item alone is fetched or borrowed, as an object of its own: the peer
// sends its header and its frames. A fetched copy of an item serves the attempts that wait for it;
// it is not reported to the scheduler and is dropped with the last of them. In both cases the
// operation sees the item as an ordinary input.

// listOf names the whole object of which an object is an item; the object itself if it is none.
func listOf(id ledger.ObjectID) ledger.ObjectID {
	id.Item = 0
	return id
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

// absentItem returns the error of an attempt whose input is to be an item that its list does not
// have; nil for any other input.
func absentItem(in device.Input, item ids.Item) *millracev1.TaskError {
	if item == 0 {
		return nil
	}
	why, absent := value.Absent(in.Header)
	if !absent {
		return nil
	}
	return &millracev1.TaskError{Reason: "INVALID_ARGUMENT", Message: fmt.Sprintf(
		"the result %s, so that there is no item %d (counted from 0): make that task return a list with this item, or ask for another item", why, item-1)}
}
