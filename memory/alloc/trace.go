package alloc

import "fmt"

// Kind is the kind of a Step.
type Kind byte

// The kinds, as they appear in a trace.
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
	// Bytes is the requested size; 0 if the block was freed.
	Bytes uint64
}

// Observe sets a function that is called for each change from now on, so that the changes can be
// repeated elsewhere; nil means none.
func (a *Allocator) Observe(f func(Step)) { a.observe = f }

// String returns the step as a line of a trace.
func (s Step) String() string { return fmt.Sprintf("%c %d %d", s.Kind, s.Offset, s.Bytes) }
