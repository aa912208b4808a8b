//go:build cgo && linux

package cuda

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/sharedlib"
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
		{"array.svd", nil, square, "Xgesvdp"},
		{"array.svd", onlyValues, wide, "Xgesvdp"},
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
