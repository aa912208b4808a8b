package millrace

import (
	"errors"
	"fmt"
)

// Item is an argument that stands for one item of a result that is a list. The worker of the task
// reads only the bytes of that item. [Future.Item] and [Key.Item] make Items.
type Item struct {
	source       any // a Key or a *Future
	index, count int
}

// Item returns an argument that stands for one item of the result, which must be a list. index
// counts from 0. count is the expected length of the list, from which the scheduler estimates the
// size of the item; 0: unknown.
func (f *Future) Item(index, count int) Item { return Item{source: f, index: index, count: count} }

// Item is [Future.Item] for the result of the task with this key.
func (k Key) Item(index, count int) Item { return Item{source: k, index: index, count: count} }

// maxItems bounds the items of a list that a task can name.
const maxItems = 1 << 24

func (x Item) check() error {
	switch {
	case x.source == nil:
		return errors.New("an empty Item refers to no task: make it by the method Item of a Future or a Key")
	case x.index < 0 || x.index >= maxItems || x.count >= maxItems:
		return fmt.Errorf("item %d of %d: an index and a length below %d are possible", x.index, x.count, maxItems)
	case x.count < 0 || x.count > 0 && x.index >= x.count:
		return fmt.Errorf("item %d (counted from 0) of a list of %d: correct one of both", x.index, x.count)
	}
	return nil
}
