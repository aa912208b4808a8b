//go:build cgo && linux

package cuda

import (
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/sharedlib"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/ops"
)

// stoodIn are the libraries that have stand-ins. cuBLAS is the first.
var stoodIn = []string{"cublas", "cusolver"}

// standIns is testdata/libraries.c in the place of NVIDIA's libraries.
type standIns struct {
	*bench
	lib *sharedlib.Library
}

// onStandIns opens a device on the fake driver, with libraries that compute nothing either. So all
// operations can be dispatched, and the tests see which routines they call.
func onStandIns(t *testing.T) *standIns {
	t.Helper()
	if fake == nil {
		t.Skip("this machine has the real libraries")
	}
	t.Cleanup(fake.Heal)
	folder := t.TempDir()
	file := filepath.Join(folder, "lib"+stoodIn[0]+".so.12")
	compiler := os.Getenv("CC")
	if compiler == "" {
		compiler = "cc"
	}
	if out, err := exec.Command(compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-o", file, "testdata/libraries.c").CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", compiler, err, out)
	}
	for _, name := range stoodIn[1:] {
		if err := os.Symlink(file, filepath.Join(folder, "lib"+name+".so.12")); err != nil {
			t.Fatal(err)
		}
	}
	lib, err := sharedlib.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	return &standIns{open(t, 64<<20, Options{Libraries: []string{nvrtcFolder(), folder}, Python: "none"}), lib}
}

// routinesOf runs one call and returns the routines of the libraries that it calls, without the
// libraries' prefixes.
func (s *standIns) routinesOf(t *testing.T, name string, options named, positional ...any) []string {
	t.Helper()
	s.taken(t)
	s.launchesOf(t, name, options, positional...)
	return s.taken(t)
}

func (s *standIns) taken(t *testing.T) []string {
	t.Helper()
	names := make([]byte, 1<<16)
	if _, err := s.lib.Call("fake_calls", addressOfBytes(names), uint64(len(names))); err != nil {
		t.Fatal(err)
	}
	text, _, _ := strings.Cut(string(names), "\x00")
	routines := strings.Fields(text)
	for i, r := range routines {
		r = strings.TrimPrefix(strings.TrimPrefix(r, "cusolverDn"), "cublas")
		routines[i] = strings.TrimSuffix(strings.TrimSuffix(r, "_64"), "_v2")
	}
	return routines
}

func TestFactorisationsCallTheirRoutines(t *testing.T) {
	s := onStandIns(t)
	tall := s.onDevice(t, tensor(t, "float64", 3000, 20))
	single := s.onDevice(t, tensor(t, "float32", 3000, 20))
	square := s.onDevice(t, tensor(t, "float64", 50, 50))
	wide := s.onDevice(t, tensor(t, "float64", 30, 50))
	onlyR, onlyValues := named{"mode": "r"}, named{"vectors": false}
	gram := "GemmEx Dpotrf"
	for _, c := range []struct {
		op      string
		options named
		x       *ops.Tensor
		want    string
	}{
		{"array.qr", nil, tall, gram + " Dtrsm " + gram + " Dtrsm GemmEx"},
		{"array.qr", onlyR, tall, gram + " Dtrsm " + gram + " GemmEx"},
		{"array.qr", onlyR, single, gram + " Dtrsm " + gram + " GemmEx"},
		{"array.qr", onlyR, tensor(t, "float64", 100, 20), gram + " Dtrsm " + gram + " GemmEx"},
		{"array.qr", nil, square, "Dgeqrf Dorgqr"},
		{"array.qr", onlyR, square, "Dgeqrf"},
		{"array.qr", onlyR, wide, "Dgeqrf"},
		{"array.svd", nil, tall, gram + " Dtrsm " + gram + " Dtrsm GemmEx Xgesvdp GemmEx"},
		{"array.svd", onlyValues, tall, gram + " Dtrsm " + gram + " GemmEx Xgesvdp"},
		// The fake driver finds no element that is not zero.
		{"array.svd", nil, square, "Dgesvd"},
		{"array.svd", onlyValues, wide, "Dgesvd"},
	} {
		if got := s.routinesOf(t, c.op, c.options, c.x); strings.Join(got, " ") != c.want {
			t.Errorf("%s %v of %v %v calls %v, want %s", c.op, c.options, c.x.DType, c.x.Shape, got, c.want)
		}
	}
}

// TestOnlyRNeedsLittleMemory checks that q is not stored if nobody wants it: its rows are computed
// in parts of rowsBytes.
func TestOnlyRNeedsLittleMemory(t *testing.T) {
	s := onStandIns(t)
	const rows = 2 * rowsBytes / 8 // of one column
	x := &ops.Tensor{DType: ops.Float64, Shape: []int64{rows, 1}, Strides: []int64{0, 8}}
	x.Far = s.onDevice(t, tensor(t, "float64", 1000)).Far
	for _, op := range []struct {
		name    string
		options named
	}{{"array.qr", named{"mode": "r"}}, {"array.svd", named{"vectors": false}}} {
		got := s.routinesOf(t, op.name, op.options, x)
		if count := len(slices.DeleteFunc(got, func(r string) bool { return r != "Dtrsm" })); count != 2 {
			t.Errorf("%s divides %d times, want once for each half", op.name, count)
		}
		if most := uint64(rowsBytes + 16<<20); s.scratch.Size() > most {
			t.Errorf("%s has taken %d bytes, at most %d are needed", op.name, s.scratch.Size(), most)
		}
	}
}

func TestStacksOfMatricesCallTheirRoutines(t *testing.T) {
	s := onStandIns(t)
	x := func(dtype string, shape ...int64) *ops.Tensor { return s.onDevice(t, tensor(t, dtype, shape...)) }
	one := x("float64", 300, 300)
	for _, c := range []struct {
		op     string
		inputs []any
		want   string
	}{
		{"array.cholesky", []any{one}, "Xpotrf"},
		{"array.cholesky", []any{x("int32", 3, 3)}, "Xpotrf"},
		{"array.cholesky", []any{x("float32", 2, 2, 60, 60)}, "SpotrfBatched"},
		{"array.cholesky", []any{x("complex128", 2, 260, 260)}, "Xpotrf Xpotrf"},
		{"array.cholesky", []any{x("float32", 8, 260, 260)}, "SpotrfBatched"},
		{"array.cholesky", []any{tensor(t, "complex64", 2, 3, 3)}, "CpotrfBatched"},
		{"array.solve", []any{one, x("float64", 300)}, "Xgetrf Xgetrs"},
		{"array.solve", []any{one, x("complex64", 300, 20)}, "Xgetrf Xgetrs"},
		{"array.solve", []any{one, x("float32", 5, 300, 2)}, "Xgetrf Xgetrs"}, // factored once
		{"array.solve", []any{x("float32", 5, 30, 30), x("float32", 30, 2)}, "SgetrfBatched SgetrsBatched"},
		{"array.solve", []any{x("complex128", 3, 1, 30, 30), tensor(t, "bool", 5, 30, 2)}, "ZgetrfBatched ZgetrsBatched"},
		{"array.solve", []any{x("float64", 2, 260, 260), x("float64", 260)}, "Xgetrf Xgetrs Xgetrf Xgetrs"},
		{"array.solve", []any{x("float64", 8, 260, 260), x("float64", 260)}, "DgetrfBatched DgetrsBatched"},
		{"array.solve", []any{x("float64", 0, 0), x("float64", 0, 2)}, ""},
	} {
		if got := s.routinesOf(t, c.op, nil, c.inputs...); strings.Join(got, " ") != c.want {
			t.Errorf("%s of %v calls %v, want %s", c.op, c.inputs, got, c.want)
		}
	}
}

func TestManyOrSmallMatricesAreFactoredTogether(t *testing.T) {
	for _, c := range []struct {
		rows, count int64
		want        bool
	}{
		{5, 1, false}, {5, 2, true}, {smallMatrix, 2, true}, {smallMatrix + 1, manyMatrices - 1, false}, {smallMatrix + 1, manyMatrices, true},
		{middleMatrix, manyMatrices, true}, {middleMatrix + 1, 1000, false}, {middleMatrix, 1, false},
	} {
		if got := factoredTogether(c.rows, c.count); got != c.want {
			t.Errorf("%d matrices of %d rows: %v", c.count, c.rows, got)
		}
	}
}

func TestFailuresNameTheirMatrix(t *testing.T) {
	shape := []int64{2, 1, 5, 5}
	a := &ops.Tensor{DType: ops.Float64, Shape: shape, Strides: ops.ContiguousStrides(ops.Float64, shape)}
	w := &ops.Solving{A: a, Batch: []int64{2, 3}}
	k := &stack{run: &run{op: "array.solve"}, failure: make([]byte, 8)}
	singular := func(system, column int64) error { return ops.Singular(w.A, number(w, system), column) }
	for _, c := range []struct {
		failure uint64
		want    string
	}{
		{math.MaxUint64, ""},
		{4<<32 | 3, ops.Singular(a, 1, 2).Error()},
		{2<<32 | 1, ops.Singular(a, 0, 0).Error()},
		{1<<32 - 2, "array.solve: getrf refuses its argument 2"},
	} {
		le.PutUint64(k.failure, c.failure)
		if err := k.outcome("getrf", singular); err == nil && c.want != "" || err != nil && err.Error() != c.want {
			t.Errorf("%x: %v, want %q", c.failure, err, c.want)
		}
	}
}

// TestContractionsKeepWhatLaterStepsRead checks that each step gets the address of what an earlier
// one made, in memory that counts as the call's.
func TestContractionsKeepWhatLaterStepsRead(t *testing.T) {
	s := onStandIns(t)
	a, b, c := s.onDevice(t, tensor(t, "int64", 40, 30)), s.onDevice(t, tensor(t, "int64", 30, 50)), s.onDevice(t, tensor(t, "int64", 50, 20))
	room := &rooms{b: s.bench}
	p := s.preparedWith(t, "array.einsum", room, "ij,jk,kl->il", a, b, c)
	if started, err := p.Start(t.Context(), s.alloc); started != nil || err != nil {
		t.Fatalf("started %v, %v: it may have to wait for memory", started, err)
	}
	before := fake.Launches.Load()
	if _, err := p.Run(t.Context(), s.alloc); err != nil {
		t.Fatal(err)
	}
	launches := fake.Launched(before)
	if kernelNames(launches) != "product_int64 product_int64" || len(room.asked) != 1 {
		t.Fatalf("launches %s, asked for %v", kernelNames(launches), room.asked)
	}
	made := le.Uint64(launches[0].Parameters[16:])
	if left, right := le.Uint64(launches[1].Parameters[:]), le.Uint64(launches[1].Parameters[8:]); made != left && made != right {
		t.Errorf("the second product reads %x and %x, not %x", left, right, made)
	}
	// Without room, the call ends after what it has submitted.
	room.err = device.ErrNoRoom
	if _, err := s.preparedWith(t, "array.einsum", room, "ij,jk,kl->il", a, b, c).Run(t.Context(), s.alloc); !errors.Is(err, device.ErrNoRoom) {
		t.Errorf("without memory: %v", err)
	}
	if n := len(s.slots.free); n != slotCount {
		t.Errorf("%d slots are taken after the calls", slotCount-n)
	}
	if got := s.routinesOf(t, "array.einsum", nil, "ij,jk,kl->", s.onDevice(t, tensor(t, "float32", 40, 30)), b, c); len(got) == 0 {
		t.Error("products of floats do not call cuBLAS")
	}
}
