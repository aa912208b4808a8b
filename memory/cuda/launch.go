package cuda

import "fmt"

// Dim is the extent of a grid in blocks, or of a block in threads. Zero counts
// as one.
type Dim [3]uint32

// Launch is one launch of a batch.
type Launch struct {
	Function    *Function
	Grid, Block Dim
	// SharedBytes is the dynamic shared memory of each block.
	SharedBytes uint32
	// Parameters are the kernel's, laid out as in a C structure of them.
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

// parameterAlignment is that of the strictest parameter, a vector of 16 bytes.
const parameterAlignment = 16

// Launch submits kernels, in order, and returns at once; one call of the shim for
// all of them. If after is not nil it is recorded behind the last. On an error
// some may have been submitted, and after was not recorded: fence the stream
// before the memory is used again.
func (s *Stream) Launch(launches []Launch, after *Event) error {
	if err := s.device.Health(); err != nil {
		return err
	}
	raw := make([]rawLaunch, len(launches))
	var parameters []byte
	for i, l := range launches {
		for len(parameters)%parameterAlignment != 0 {
			parameters = append(parameters, 0)
		}
		raw[i] = rawLaunch{
			function: l.Function.handle, grid: l.Grid.atLeastOne(), block: l.Block.atLeastOne(), sharedBytes: l.SharedBytes,
			parametersAt: uint32(len(parameters)), parametersBytes: uint32(len(l.Parameters)),
		}
		parameters = append(parameters, l.Parameters...)
	}
	var event uint64
	if after != nil {
		event = after.handle
	}
	n, r := s.device.api.launchBatch(s.device.context, s.handle, raw, parameters, event)
	if r == success {
		return nil
	}
	call := "cuEventRecord"
	if n < len(launches) {
		l := launches[n]
		call = fmt.Sprintf("cuLaunchKernel of %s, launch %d of %d, grid %v, block %v, %d bytes of shared memory,",
			l.Function.name, n+1, len(launches), raw[n].grid, raw[n].block, l.SharedBytes)
	}
	return s.device.check(call, r)
}

func (d Dim) atLeastOne() Dim {
	for i := range d {
		d[i] = max(d[i], 1)
	}
	return d
}
