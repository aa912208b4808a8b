package alloc

import "fmt"

// Kind is what a Step did.
type Kind byte

// The kinds, as they are written.
const (
	Allocated Kind = 'a'
	Claimed   Kind = 'c'
	Freed     Kind = 'f'
	// Cut is a Split: the block keeps the bytes of the step.
	Cut Kind = 's'
)

// Step is one change of an allocator.
type Step struct {
	Kind   Kind
	Offset uint64
	// Bytes are those that were asked for; 0 if the block was freed.
	Bytes uint64
}

// Observe says whom to tell of each change from now on, so that it can be made
// again elsewhere; nil: nobody.
func (a *Allocator) Observe(f func(Step)) { a.observe = f }

// String is a line of a trace.
func (s Step) String() string { return fmt.Sprintf("%c %d %d", s.Kind, s.Offset, s.Bytes) }
