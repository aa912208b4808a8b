package worker

import (
	"context"
	"errors"
	"fmt"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/localdir"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/disk"
	hostmemory "github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/mirror"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/device/host"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/ops/lapack"
)

// opened is the memory of a worker, together with the device that it belongs to.
type opened struct {
	device device.Device
	// local is the worker's own directory.
	local *localdir.Dir
	// below are the tiers below the slab, fastest first.
	below []memory.Tier
	// executors and lent say how executors and peers map a slab on a GPU. Nil:
	// the slab is in host memory.
	executors *executor.Device
	lent      *borrow.Device
	// mirror shows objects on the GPU to processes that can map only host memory. Nil:
	// these processes read streams.
	mirror *mirror.Mirror
	// gpu is the description of the GPU for the scheduler, nil without a GPU.
	gpu *millracev1.Gpu
	// health returns the reason why the device is lost, nil while it works.
	health func() error
	// watch starts to monitor the device. It calls fail when the device is lost,
	// until stop is called.
	watch func(fail func(error)) (stop func())
	// doubt requests a check of the device soon, by the goroutine that watch has started.
	doubt func()
	// linalg is the library of linear algebra.
	linalg *lapack.Loading
	// undo closes what is open.
	undo
}

// open opens the device and the memory tiers.
func (c Config) open(ctx context.Context, identity memory.Identity) (m *opened, err error) {
	m = &opened{doubt: func() {}, health: func() error { return nil }, watch: func(func(error)) func() { return func() {} }}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.close())
		}
	}()
	if err := c.openLocal(m); err != nil {
		return m, err
	}
	// The search takes some 30 ms. It runs beside what follows.
	m.linalg = c.linalg().Start(ctx)
	m.then(func() error { m.linalg.Stop(); return nil })
	if c.Device == DeviceCUDA {
		err = c.openGPU(ctx, identity, m)
	} else {
		err = c.openHost(identity, m)
	}
	if err != nil {
		return m, err
	}
	return m, c.openDisk(m)
}

// describe adds the memory to the registration with the scheduler.
func (m *opened) describe(r *workerv1.Registration) {
	r.Device = millracev1.DeviceKind(m.device.Kind())
	r.MemoryLimitBytes = m.device.Space().Size()
	r.Gpu = m.gpu
}

// openLocal makes the worker's directory, and removes the directories of dead workers.
func (c Config) openLocal(m *opened) (err error) {
	localdir.Clean(c.LocalDirectory)
	if m.local, err = localdir.Make(c.LocalDirectory, c.Name); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	m.then(func() error {
		if failed := m.local.Close(); failed != nil {
			// A task may have made files that its worker cannot remove.
			c.Log.Warn("the worker's directory is left behind", "directory", m.local.Path(), "error", failed)
		}
		return nil
	})
	return nil
}

// shown returns the host memory through which objects on a GPU are lent to processes that cannot
// map GPU memory. Nil without a mirror.
func (m *opened) shown(s transfer.Source, r transfer.Receiver) *borrow.Host {
	if m.mirror == nil {
		return nil
	}
	return &borrow.Host{Space: m.mirror.Space(), Source: m.mirror.Source(s), Receiver: m.mirror.Receiver(r), Stager: m.mirror}
}

func (c Config) openHost(identity memory.Identity, m *opened) error {
	slab, err := hostmemory.NewSlab(c.MemoryLimitBytes, identity)
	if err != nil {
		return err
	}
	m.device = host.New(slab, m.linalg)
	m.then(m.device.Close)
	return nil
}

// openDisk opens the lowest tier.
func (c Config) openDisk(m *opened) error {
	if c.SpillLimitBytes == NoSpill {
		return nil
	}
	tier, err := disk.Open(disk.Config{Directory: m.local.Path(), SizeBytes: c.SpillLimitBytes})
	if err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	m.then(tier.Close)
	m.below = append(m.below, tier)
	c.Log.Info("results that there is no room for in memory go to disk", "directory", m.local.Path(), "limit_bytes", tier.Size(), "direct_io", tier.Direct())
	return nil
}
