package sim

import (
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
)

// In the simulation any object may serve as a list of itemsOfList items, which all have its value.
// An item has a part of its bytes. A worker with the whole object reads items there; others fetch
// only the item.
const itemsOfList = 4

// items makes every second input of every third task an item. It draws no random number, so that
// other choices of a seed stay.
func (s *spec) items() (items []sched.ItemInput) {
	for i := s.index % 2; i < len(s.inputs) && s.index%3 == 0; i += 2 {
		items = append(items, sched.ItemInput{Input: uint32(i), Item: ids.Item(1 + s.index%itemsOfList), Count: itemsOfList})
	}
	return items
}

// listOf is the whole object of which o is an item; o itself if it is none.
func listOf(o object) object {
	o.Item = 0
	return o
}

// share is the size of o if the whole object has that many bytes.
func share(o object, bytes uint64) uint64 {
	if o.Item == 0 {
		return bytes
	}
	return (bytes + itemsOfList - 1) / itemsOfList
}
