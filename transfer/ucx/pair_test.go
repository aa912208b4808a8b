//go:build cgo && linux

package ucx_test

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/memory/cuda/cudatest"
	"github.com/millrace/millrace/transfer/ucx"
)

// realEnv selects the machine's CUDA driver instead of the fake one.
const realEnv = "MILLRACE_CUDA_REAL"

// fakeMemory is the memory of a fake GPU. The slabs of all tests fit, because their pages exist
// only once they are written.
const fakeMemory = 1 << 42

// place says where a side has its slab.
type place int

const (
	onHost place = iota
	// onGPU is a GPU whose memory no network device reads, so the bytes are staged.
	onGPU
	// onOpenGPU is a GPU whose memory the transports read as they read host memory. Only the fake
	// GPU can be one: its memory is host memory.
	onOpenGPU
)

func (p place) String() string { return [...]string{"host", "GPU", "open GPU"}[p] }

// pair says where source and reader have their slabs, and by which transports they are connected.
type pair struct {
	tls            string
	source, reader place
}

// order returns the order for a child that is the source of the pair.
func (p pair) order() childOrder { return childOrder{TLS: p.tls, Place: p.source} }

// Places of source and reader: few for tests in which they matter little, all for the conformance
// suite. The short tests leave out those that come last.
var (
	fewPlaces  = [][2]place{{onHost, onHost}, {onGPU, onGPU}}
	manyPlaces = [][2]place{{onHost, onHost}, {onGPU, onGPU}, {onGPU, onHost}}
	allPlaces  = [][2]place{
		{onHost, onHost}, {onGPU, onGPU}, {onHost, onGPU}, {onOpenGPU, onOpenGPU},
		{onGPU, onHost}, {onOpenGPU, onGPU}, {onGPU, onOpenGPU}, {onOpenGPU, onHost}, {onHost, onOpenGPU},
	}
)

// mostShort is how many places the short tests use; over TCP they use one.
const mostShort = 3

// eachPair runs a test with slabs at each of the places and over each of the transports.
func eachPair(t *testing.T, places [][2]place, f func(t *testing.T, p pair)) {
	t.Helper()
	for name, tls := range transports {
		for i, x := range places {
			if testing.Short() && (i >= mostShort || name == "tcp" && i >= 1) {
				break
			}
			p := pair{tls, x[0], x[1]}
			switch {
			case (p.source == onOpenGPU || p.reader == onOpenGPU) && (name == "tcp" || onRealGPU()):
				continue // tcp reads no memory by itself; the memory of a real GPU is not host memory
			case p.source != onHost || p.reader != onHost:
				t.Run(fmt.Sprintf("%s from %s to %s", name, p.source, p.reader), func(t *testing.T) { f(t, p) })
			default:
				t.Run(name, func(t *testing.T) { f(t, p) })
			}
		}
	}
}

func onRealGPU() bool { return os.Getenv(realEnv) != "" }

// fake is the fake driver, if this process has started it.
var fake *cudatest.Fake

// driver returns the CUDA driver: the machine's, or a fake one. A child uses the fake driver of its
// parent.
var driver = sync.OnceValues(func() (*cuda.Driver, error) {
	if onRealGPU() {
		return cuda.Load(cuda.Config{})
	}
	if cmp.Or(os.Getenv(childEnv), os.Getenv(gpuChildEnv)) == "" {
		var err error
		if fake, err = cudatest.Start(2, fakeMemory); err != nil {
			return nil, err
		}
		if err := os.Setenv(cudatest.LibraryEnvironment, fake.Library); err != nil {
			return nil, err
		}
	}
	return cuda.Load(cuda.Config{Library: os.Getenv(cudatest.LibraryEnvironment)})
})

// closeFake closes the fake driver. It returns an error if something of it is in use.
func closeFake() error {
	if fake == nil {
		return nil
	}
	fake.Reap()
	left := fake.Left()
	err := fake.Close()
	if left != "" {
		err = errors.Join(err, fmt.Errorf("left in the driver: %s", left))
	}
	return err
}

// newSpace returns a slab at a place, which ends with the test.
func newSpace(tb testing.TB, at place) memory.Space {
	tb.Helper()
	if at == onHost {
		return newSlab(tb, slabBytes)
	}
	d := deviceOf(tb)
	s, err := d.NewSlab(cuda.SlabConfig{Size: cuda.Size{Bytes: slabBytes}, Identity: newIdentity()})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// deviceOf opens the first GPU until the test ends. The faults that the test makes end with it.
func deviceOf(tb testing.TB) *cuda.Device {
	tb.Helper()
	driver, err := driver()
	if err != nil {
		tb.Fatal(err)
	}
	if fake != nil {
		tb.Cleanup(fake.Heal)
	}
	d, err := driver.Open(0)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := d.Close(); err != nil {
			tb.Error(err)
		}
	})
	return d
}

// at returns a configuration for a slab at a place.
func at(p place, c ucx.Config) ucx.Config {
	if p == onOpenGPU {
		return c.Open()
	}
	return c
}
