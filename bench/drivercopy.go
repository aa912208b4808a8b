package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/ipc"
)

// driverCopy copies memory of workers directly with the driver, to a slab of this process on the
// GPU of one of them. That shows the speed of the hardware without tasks, objects and leases.
type driverCopy struct {
	device *cuda.Device
	slab   *cuda.Slab
	path   *ipc.Path
}

// openDriverCopy allocates the given number of bytes on the GPU of a worker.
func (c *Cluster) openDriverCopy(driver *cuda.Driver, reader *millracev1.Worker, bytes int) (_ *driverCopy, err error) {
	info, err := driver.Find(reader.GetGpu().GetUuid())
	if err != nil {
		return nil, err
	}
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	b := new(driverCopy)
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if b.device, err = driver.Open(info.Ordinal); err != nil {
		return nil, err
	}
	if b.slab, err = b.device.NewSlab(cuda.SlabConfig{Size: cuda.Size{Bytes: uint64(bytes) + 8<<20}, Identity: memory.Identity{Nonce: 1}}); err != nil {
		return nil, err
	}
	b.path, err = ipc.New(ipc.Config{Device: b.device, Slab: b.slab, Token: token})
	return b, err
}

// close releases all that openDriverCopy acquired.
func (b *driverCopy) close() error {
	var errs []error
	if b.path != nil {
		errs = append(errs, b.path.Close())
	}
	if b.slab != nil {
		errs = append(errs, b.slab.Close())
	}
	if b.device != nil {
		errs = append(errs, b.device.Close())
	}
	return errors.Join(errs...)
}

// copies times copies of a worker's first bytes to an offset in the slab, with a pause before each.
func (b *driverCopy) copies(ctx context.Context, from *millracev1.Worker, bytes, at int, rest time.Duration) ([]time.Duration, error) {
	peer := peerOf(from)
	remote := memory.Frame{Offset: memory.HeaderBytes, Bytes: uint64(bytes)}
	into := memory.Frame{Offset: memory.HeaderBytes + uint64(at), Bytes: uint64(bytes)}
	took, err := b.path.Raw(ctx, peer, remote, transfer.Region{Space: b.slab, Frame: into}, rawTimes+warmUps, rest)
	if err != nil {
		return nil, err
	}
	return took[warmUps:], nil
}

// driverCopies times copies of memory from GPU to GPU, between all pairs at once. A pair is the
// names of a source and a reader. It returns the times of each pair's copies, with a pause before
// each copy.
func (c *Cluster) driverCopies(ctx context.Context, library string, size int, rest time.Duration, pairs ...[2]string) (took [][]time.Duration, err error) {
	driver, err := cuda.Load(cuda.Config{Library: library})
	if err != nil {
		return nil, err
	}
	workers, err := byName(ctx, c.Client)
	if err != nil {
		return nil, err
	}
	readers := make(map[string]*driverCopy)
	defer func() {
		for _, b := range readers {
			err = errors.Join(err, b.close())
		}
	}()
	places := make([]int, len(pairs))
	for i, pair := range pairs {
		if workers[pair[0]] == nil || workers[pair[1]] == nil {
			return nil, fmt.Errorf("bench: there is no worker %s, or no %s", pair[0], pair[1])
		}
		for _, before := range pairs[:i] {
			if before[1] == pair[1] {
				places[i] += (size + 511) &^ 511
			}
		}
	}
	for _, pair := range pairs {
		if readers[pair[1]] == nil {
			room := (size + 512) * len(pairs)
			if readers[pair[1]], err = c.openDriverCopy(driver, workers[pair[1]], room); err != nil {
				return nil, err
			}
		}
	}
	took = make([][]time.Duration, len(pairs))
	errs := make([]error, len(pairs))
	var all sync.WaitGroup
	for i, pair := range pairs {
		b := readers[pair[1]]
		all.Go(func() { took[i], errs[i] = b.copies(ctx, workers[pair[0]], size, places[i], rest) })
	}
	all.Wait()
	return took, errors.Join(errs...)
}

// byName returns the workers by name.
func byName(ctx context.Context, client *millrace.Client) (map[string]*millracev1.Worker, error) {
	workers, err := client.Workers(ctx)
	if err != nil {
		return nil, err
	}
	out := make(map[string]*millracev1.Worker, len(workers))
	for _, w := range workers {
		out[w.GetName()] = w
	}
	return out, nil
}
