package millrace

import (
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// inputItem is one item of input number input, counted from 0 like the item itself.
type inputItem struct{ input, item, count uint32 }

// size is the size of the item as a message ItemInput.
func (it inputItem) size() int {
	return 3 + protowire.SizeVarint(uint64(it.input)) + protowire.SizeVarint(uint64(it.item)) + protowire.SizeVarint(uint64(it.count))
}

// inputName names an input: the result of the task key, or one item of it, counted from 1.
type inputName struct {
	key  string
	item uint32
}

// inputList collects the results and items to which arguments refer, each once, in the order of
// first use.
type inputList struct {
	keys    []string
	items   []inputItem          // of the inputs that are items, in the order of input
	index   map[inputName]uint32 // built when there are too many keys for a linear search
	futures []*Future
	// template is the template of the task; nil: it is in none. holed means that the arguments have
	// holes.
	template *TemplateBuilder
	holed    bool
}

// name returns the name of input i.
func (l *inputList) name(i int) inputName {
	at, found := slices.BinarySearchFunc(l.items, i, func(x inputItem, i int) int { return int(x.input) - i })
	if !found {
		return inputName{key: l.keys[i]}
	}
	return inputName{l.keys[i], l.items[at].item + 1}
}

func (l *inputList) find(name inputName) (i uint32, ok bool) {
	if l.index != nil {
		i, ok = l.index[name]
		return i, ok
	}
	for i, key := range l.keys {
		if key == name.key && l.name(i) == name {
			return uint32(i), true
		}
	}
	return 0, false
}

// add adds an input. count is the expected length of the list, if the input is an item.
func (l *inputList) add(name inputName, count uint32) uint32 {
	if i, ok := l.find(name); ok {
		return i
	}
	i := uint32(len(l.keys))
	l.keys = append(l.keys, name.key)
	if name.item > 0 {
		l.items = append(l.items, inputItem{i, name.item - 1, count})
	}
	if l.index != nil {
		l.index[name] = i
	} else if len(l.keys) == 16 {
		l.index = make(map[inputName]uint32, 64)
		for j := range l.keys {
			l.index[l.name(j)] = uint32(j)
		}
	}
	return i
}

// addSource adds the result of a Key or a *Future, or item of it, counted from 1.
func (l *inputList) addSource(source any, item, count uint32) (uint32, error) {
	var key string
	switch source := source.(type) {
	case Key:
		key = string(source)
	case *Future:
		if source == nil {
			return 0, errors.New("a nil *Future refers to no task")
		}
		key = source.key
	}
	if l == nil {
		return 0, fmt.Errorf("a reference to task %q is not allowed here", key)
	}
	if f, ok := source.(*Future); ok {
		l.futures = append(l.futures, f)
	}
	return l.add(inputName{key, item}, count), nil
}
