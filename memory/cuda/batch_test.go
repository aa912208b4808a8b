//go:build cgo && linux

package cuda_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/memory/cuda"
)

// image is accepted as a CUBIN by the fake driver.
var image = append([]byte("\x7fELF"), make([]byte, 60)...)

// submit submits launches in one batch.
func submit(s *cuda.Stream, after *cuda.Event, launches ...cuda.Launch) error {
	var b cuda.Batch
	for _, l := range launches {
		b.Launch(l)
	}
	return s.Submit(&b, after)
}

func TestKernelsAreLaunchedInOrderWithTheirParameters(t *testing.T) {
	if fake == nil {
		t.Skip("a real driver wants real code")
	}
	d := open(t, 0)
	m, err := d.Load(image)
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, m)
	var launches []cuda.Launch
	names := []string{"first", "second"}
	for i, name := range names {
		f, err := m.Function(name)
		if err != nil {
			t.Fatal(err)
		}
		launches = append(launches, cuda.Launch{
			Function: f, Grid: cuda.Dim{uint32(i + 5)}, Block: cuda.Dim{32, 2}, SharedBytes: uint32(i), Parameters: slices.Repeat([]byte{byte(i + 1)}, 9),
		})
	}
	before := fake.Launches.Load()
	after, err := d.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, after)
	if err := submit(d.Stream(cuda.Compute), after, launches...); err != nil {
		t.Fatal(err)
	}
	if err := after.Sync(); err != nil {
		t.Fatal(err)
	}
	got := fake.Launched(before)
	if len(got) != 2 {
		t.Fatalf("%d launches", len(got))
	}
	for i, l := range got {
		if l.Name() != names[i] || l.Grid != [3]uint32{uint32(i + 5), 1, 1} || l.Block != [3]uint32{32, 2, 1} ||
			l.SharedBytes != uint32(i) || l.ParameterBytes != 9 || l.Parameters[8] != byte(i+1) || l.Parameters[9] != 0 {
			t.Errorf("launch %d: %s %v %v %d %d", i, l.Name(), l.Grid, l.Block, l.SharedBytes, l.ParameterBytes)
		}
	}
}

// A batch runs its copies before its launches, and can be reused after Reset.
func TestABatchCopiesBeforeItLaunchesAndIsUsedAgain(t *testing.T) {
	if fake == nil {
		t.Skip("a real driver wants real code")
	}
	d := open(t, 0)
	m, err := d.Load(image)
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, m)
	f, err := m.Function("kernel")
	if err != nil {
		t.Fatal(err)
	}
	slab, err := d.NewSlab(cuda.SlabConfig{Size: cuda.Size{Bytes: 8 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, slab)
	event, err := d.NewPolledEvent()
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, event)
	var b cuda.Batch
	const at = 1 << 20
	for i := range 3 {
		if err := slab.WriteFrom(at, []byte{byte(i + 1)}); err != nil {
			t.Fatal(err)
		}
		b.Reset()
		for n := range i + 1 {
			b.Launch(cuda.Launch{Function: f, Parameters: []byte{byte(i), byte(n)}})
		}
		b.Copy(cuda.OnDevice(slab.Pointer(2*at, 1), slab.Pointer(at, 1), 1))
		if b.Len() != i+2 {
			t.Errorf("round %d: %d parts", i, b.Len())
		}
		before := fake.Launches.Load()
		if err := d.Stream(cuda.Compute).Submit(&b, event); err != nil {
			t.Fatal(err)
		}
		for done := false; !done; {
			if done, err = event.Query(); err != nil {
				t.Fatal(err)
			}
		}
		launched := fake.Launched(before)
		if len(launched) != i+1 {
			t.Fatalf("round %d: %d launches", i, len(launched))
		}
		for n, l := range launched {
			if l.ParameterBytes != 2 || l.Parameters[0] != byte(i) || l.Parameters[1] != byte(n) {
				t.Errorf("round %d, launch %d: %d bytes %v", i, n, l.ParameterBytes, l.Parameters[:2])
			}
		}
		var got [1]byte
		if err := slab.ReadInto(2*at, got[:]); err != nil || got[0] != byte(i+1) {
			t.Errorf("round %d: copied %d, %v", i, got[0], err)
		}
	}
	b.Copy(cuda.OnDevice(0, 0, 16))
	if err := d.Stream(cuda.Compute).Submit(&b, nil); err == nil || !strings.Contains(err.Error(), "copy 2 of 2") {
		t.Errorf("a copy from nowhere: %v", err)
	}
}

func TestLaunchErrorsNameTheKernel(t *testing.T) {
	if fake == nil {
		t.Skip("a real driver wants real code")
	}
	d := open(t, 0)
	if _, err := d.Load([]byte("ptx")); err == nil || !strings.Contains(err.Error(), "no CUBIN") {
		t.Errorf("not a CUBIN: %v", err)
	}
	m, err := d.Load(image)
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, m)
	if _, err := m.Function("missing"); err == nil || !strings.Contains(err.Error(), "kernel missing") {
		t.Errorf("a kernel that is not there: %v", err)
	}
	f, err := m.Function("wide")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.AllowShared(1 << 20); err == nil || !strings.Contains(err.Error(), "wide") {
		t.Errorf("too much shared memory: %v", err)
	}
	// Two callers of a kernel allow the memory that each needs before either launches it.
	if err := errors.Join(f.AllowShared(100<<10), f.AllowShared(64<<10), submit(d.Stream(cuda.Compute), nil, cuda.Launch{Function: f, SharedBytes: 100 << 10})); err != nil {
		t.Errorf("what was allowed has been taken away: %v", err)
	}
	err = submit(d.Stream(cuda.Compute), nil, cuda.Launch{Function: f}, cuda.Launch{Function: f, Block: cuda.Dim{2048}})
	if err == nil || !strings.Contains(err.Error(), "wide, launch 2 of 2") {
		t.Errorf("too many threads: %v", err)
	}
	if err := d.Health(); err != nil {
		t.Errorf("a refused launch is no reason to give up the device: %v", err)
	}
}
