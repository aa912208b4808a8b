package cuda

import "fmt"

// Dim is the size of a grid in blocks, or of a block in threads. A zero counts as one.
type Dim [3]uint32

// Launch is one kernel launch of a batch.
type Launch struct {
	Function    *Function
	Grid, Block Dim
	// SharedBytes is the dynamic shared memory of each block.
	SharedBytes uint32
	// Parameters are the kernel's parameters, laid out like a C structure.
	Parameters []byte
}

// rawLaunch has the layout of mrc_launch.
type rawLaunch struct {
	function                      uint64
	grid, block                   Dim
	sharedBytes                   uint32
	parametersAt, parametersBytes uint32
	_                             uint32
}

// parameterAlignment is the alignment of the strictest parameter, a vector of 16 bytes.
const parameterAlignment = 16

// Batch is a list of operations that are submitted together: copies, then launches. It keeps its
// memory for reuse after Reset. The zero Batch is empty.
type Batch struct {
	copies     []Copy
	functions  []*Function
	launches   []rawLaunch
	parameters []byte
}

// Reset empties the batch.
func (b *Batch) Reset() {
	clear(b.functions)
	b.copies, b.functions, b.launches, b.parameters = b.copies[:0], b.functions[:0], b.launches[:0], b.parameters[:0]
}

// Len returns the number of its copies and launches.
func (b *Batch) Len() int { return len(b.copies) + len(b.launches) }

// Copy adds a copy, before all launches.
func (b *Batch) Copy(c Copy) { b.copies = append(b.copies, c) }

// Launch adds a launch. It keeps a copy of the parameters.
func (b *Batch) Launch(l Launch) {
	for len(b.parameters)%parameterAlignment != 0 {
		b.parameters = append(b.parameters, 0)
	}
	b.functions = append(b.functions, l.Function)
	b.launches = append(b.launches, rawLaunch{
		function: l.Function.handle, grid: l.Grid.atLeastOne(), block: l.Block.atLeastOne(), sharedBytes: l.SharedBytes,
		parametersAt: uint32(len(b.parameters)), parametersBytes: uint32(len(l.Parameters)),
	})
	b.parameters = append(b.parameters, l.Parameters...)
}

// Submit submits a batch and returns at once. It makes one call of the shim for the whole batch. If
// after is not nil, it is recorded behind the last operation. If there is an error, some operations
// may have been submitted, and after was not recorded: call Sync before the memory is used again.
func (s *Stream) Submit(b *Batch, after *Event) error {
	if err := s.device.Health(); err != nil {
		return err
	}
	var event uint64
	if after != nil {
		event = after.handle
	}
	n, r := s.device.api.launchBatch(s.device.context, s.handle, b.copies, b.launches, b.parameters, event)
	if r == success {
		return nil
	}
	call := "cuEventRecord"
	switch i := n - len(b.copies); {
	case i < 0:
		call = fmt.Sprintf("copy %d of %d", n+1, len(b.copies))
	case i < len(b.launches):
		l := b.launches[i]
		call = fmt.Sprintf("cuLaunchKernel of %s, launch %d of %d, grid %v, block %v, %d bytes of shared memory,",
			b.functions[i].name, i+1, len(b.launches), l.grid, l.block, l.sharedBytes)
	}
	return s.device.check(call, r)
}

func (d Dim) atLeastOne() Dim {
	for i := range d {
		d[i] = max(d[i], 1)
	}
	return d
}
