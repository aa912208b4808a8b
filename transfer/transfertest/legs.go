package transfertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
)

// Legs are the rates, in bytes per second, of the copies between a slab on a GPU and pinned host
// memory.
type Legs struct {
	// Load is the rate from the slab, and Store that to the slab.
	Load, Store float64
	// LoadBeside and StoreBeside are the rates while both directions are used.
	LoadBeside, StoreBeside float64
}

// legSlots is the number of copies that are in progress at a time.
const legSlots = 8

// MeasureLegs measures copies of memory.StageBytes by a ring, several at a time, until the given
// number of bytes has been moved in each direction. It overwrites the slab with its own bytes.
func MeasureLegs(ctx context.Context, slab *cuda.Slab, moved uint64) (x Legs, err error) {
	ring, err := slab.NewRing(2 * legSlots)
	if err != nil {
		return x, err
	}
	load := func(s *cuda.RingSlot, p memory.Piece) { s.Load(p) }
	store := func(s *cuda.RingSlot, p memory.Piece) { s.Store(p) }
	if _, err = leg(ctx, slab, ring, moved/8, load); err == nil { // warms up
		x.Load, err = leg(ctx, slab, ring, moved, load)
	}
	if err == nil {
		x.Store, err = leg(ctx, slab, ring, moved, store)
	}
	if err == nil {
		var both errgroup.Group
		both.Go(func() (err error) {
			x.LoadBeside, err = leg(ctx, slab, ring, moved, load)
			return err
		})
		both.Go(func() (err error) {
			x.StoreBeside, err = leg(ctx, slab, ring, moved, store)
			return err
		})
		err = both.Wait()
	}
	return x, errors.Join(err, ring.Close())
}

// leg returns the rate of one direction.
func leg(ctx context.Context, slab *cuda.Slab, ring *cuda.Ring, moved uint64, begin func(*cuda.RingSlot, memory.Piece)) (float64, error) {
	began := time.Now()
	var group errgroup.Group
	group.SetLimit(legSlots)
	places := (slab.Size() - memory.HeaderBytes) / memory.StageBytes
	for i := range moved / memory.StageBytes {
		group.Go(func() error {
			s, err := ring.Take(ctx)
			if err != nil {
				return err
			}
			defer s.Free()
			begin(s, memory.Piece{Frame: memory.Frame{Offset: memory.HeaderBytes + i%places*memory.StageBytes, Bytes: memory.StageBytes}})
			return s.Wait()
		})
	}
	err := group.Wait()
	return float64(moved) / time.Since(began).Seconds(), err
}

// Note logs a figure, and appends it to the file that tools/gpu-run names.
func Note(t *testing.T, name string, value float64, unit string) {
	t.Helper()
	line := fmt.Sprintf("%-70s %10.3f %s", name, value, unit)
	t.Log(line)
	path := os.Getenv("MILLRACE_RATES")
	if path == "" {
		return
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	_, err = fmt.Fprintln(file, line)
	if err = errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
}
