package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/ipc"
)

// rawIPC copies memory of the source's GPU as it is to a slab of this process on the reader's GPU.
func (t *transferring) rawIPC(ctx context.Context, size int) (took []time.Duration, err error) {
	workers, err := t.client.Workers(ctx)
	if err != nil {
		return nil, err
	}
	var source, reader *millracev1.Worker
	for _, w := range workers {
		switch w.GetName() {
		case transferSource:
			source = w
		case transferReader:
			reader = w
		}
	}
	if source == nil || reader == nil {
		return nil, fmt.Errorf("there is no worker %s, or no %s", transferSource, transferReader)
	}
	driver, err := cuda.Load(cuda.Config{Library: t.library})
	if err != nil {
		return nil, err
	}
	info, err := driver.Find(reader.GetGpu().GetUuid())
	if err != nil {
		return nil, err
	}
	device, err := driver.Open(info.Ordinal)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, device.Close()) }()
	slab, err := device.NewSlab(cuda.SlabConfig{Size: cuda.Size{Bytes: uint64(size) + 8<<20}, Identity: memory.Identity{Nonce: 1}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, slab.Close()) }()
	token, err := t.cluster.token()
	if err != nil {
		return nil, err
	}
	path, err := ipc.New(ipc.Config{Device: device, Slab: slab, Token: token})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, path.Close()) }()
	peer := transfer.Peer{Worker: ids.WorkerID(source.GetWorkerId()), Name: source.GetName(), Address: source.GetDataAddress()}
	frame := memory.Frame{Offset: memory.HeaderBytes, Bytes: uint64(size)}
	took, err = path.Raw(ctx, peer, frame, transfer.Region{Space: slab, Frame: frame}, rawTimes+warmUps)
	if err != nil {
		return nil, err
	}
	return took[warmUps:], nil
}
