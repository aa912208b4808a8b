package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/grpcpath"
	"github.com/millrace/millrace/transfer/ucx"
)

// rawTimes is the number of timed raw reads, after warmUps others.
const rawTimes = 50

// rawTimeout is the longest time of one raw read. It bounds the whole read, of up to a gigabyte and
// on slow networks, not the time without progress as for fetches.
const rawTimeout = time.Minute

// rawConfig describes the memory that raw reads go to.
type rawConfig struct {
	// Token is the token of workers.
	Token string
	// Bytes is the size of the largest read.
	Bytes int
	// GPU is the UUID of the GPU whose memory is read into; "": host memory. CUDALibrary is the
	// driver; "": the system's.
	GPU, CUDALibrary string
	// UCX has the library, transports and network devices.
	UCX ucx.Config
}

// rawReader reads memory of workers directly by UCX into a slab of this process, without tasks,
// objects and leases. That shows the speed of the connection.
type rawReader struct {
	slab    memory.Space
	path    *ucx.Path
	closing []func() error
}

// openRaw allocates the memory and opens UCX.
func openRaw(c rawConfig) (_ *rawReader, err error) {
	r := new(rawReader)
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if err := r.allocate(c); err != nil {
		return nil, err
	}
	c.UCX.Space = r.slab
	context, err := ucx.Open(c.UCX)
	if err != nil {
		return nil, err
	}
	r.closing = append(r.closing, context.Close)
	streams := grpcpath.New(grpcpath.Config{Token: c.Token})
	r.closing = append(r.closing, streams.Close)
	r.path = ucx.NewPath(context, ucx.PathConfig{Connect: streams.Connect, StallTimeout: rawTimeout})
	r.closing = append(r.closing, r.path.Close)
	return r, nil
}

// allocate makes the slab.
func (r *rawReader) allocate(c rawConfig) error {
	identity := memory.Identity{Nonce: 1}
	if c.GPU == "" {
		slab, err := host.NewSlab(uint64(c.Bytes+2*os.Getpagesize())&^uint64(os.Getpagesize()-1)+memory.HeaderBytes, identity)
		if err != nil {
			return err
		}
		r.slab, r.closing = slab, append(r.closing, slab.Close)
		return nil
	}
	driver, err := cuda.Load(cuda.Config{Library: c.CUDALibrary})
	if err != nil {
		return err
	}
	info, err := driver.Find(c.GPU)
	if err != nil {
		return err
	}
	device, err := driver.Open(info.Ordinal)
	if err != nil {
		return err
	}
	r.closing = append(r.closing, device.Close)
	slab, err := device.NewSlab(cuda.SlabConfig{Size: cuda.Size{Bytes: uint64(c.Bytes) + 8<<20}, Identity: identity})
	if err != nil {
		return fmt.Errorf("memory of %s for raw reads: %w", c.GPU, err)
	}
	r.slab, r.closing = slab, append(r.closing, slab.Close)
	return nil
}

// close frees all that openRaw acquired.
func (r *rawReader) close() (err error) {
	for i := len(r.closing) - 1; i >= 0; i-- {
		err = errors.Join(err, r.closing[i]())
	}
	return err
}

// peerOf names a worker as paths do.
func peerOf(w *millracev1.Worker) transfer.Peer {
	return transfer.Peer{Worker: ids.WorkerID(w.GetWorkerId()), Name: w.GetName(), Address: w.GetDataAddress()}
}

// connect returns the proved connection to a worker.
func (r *rawReader) connect(ctx context.Context, from *millracev1.Worker) (ucx.Connection, error) {
	return r.path.Connect(ctx, peerOf(from))
}

// read times reads of a worker's memory.
func (r *rawReader) read(ctx context.Context, from *millracev1.Worker, size, times int) ([]time.Duration, error) {
	frame := memory.Frame{Offset: memory.HeaderBytes, Bytes: uint64(size)}
	took, err := r.path.Raw(ctx, peerOf(from), frame, transfer.Region{Space: r.slab, Frame: frame}, times+warmUps)
	if err != nil {
		return nil, err
	}
	return took[warmUps:], nil
}
