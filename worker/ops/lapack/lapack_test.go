//go:build cgo

package lapack

import (
	"os"
	"path/filepath"
	"testing"
)

// numpys returns NumPy's own copy of OpenBLAS.
func numpys(t *testing.T) *Library {
	t.Helper()
	files, err := filepath.Glob("../../../.venv/lib/python3*/site-packages/numpy.libs/libscipy_openblas64_*.so")
	if err != nil || len(files) == 0 {
		if os.Getenv("MILLRACE_BLAS") == "" {
			t.Fatal("no library: run make build, or set MILLRACE_BLAS")
		}
		files = []string{os.Getenv("MILLRACE_BLAS")}
	}
	l, err := Load(files[0])
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestRoutinesTakeNumbersArraysAndLetters(t *testing.T) {
	l := numpys(t)
	a, b, c := []float64{1, 2, 3, 4}, []float64{5, 6, 7, 8}, make([]float64, 4)
	if _, err := l.Call("dgemm", Letter('N'), Letter('T'), Int(2), Int(2), Int(2), Float64(2), Array(a), Int(2),
		Array(b), Int(2), Float64(0), Array(c), Int(2)); err != nil {
		t.Fatal(err)
	}
	if want := [4]float64{52, 76, 60, 88}; [4]float64(c) != want {
		t.Errorf("2 a b' is %v, want %v", c, want)
	}
	x := []float64{4, 2, 2, 5}
	if info, err := l.Call("dpotrf", Letter('L'), Int(2), Array(x), Int(2), Info()); info != 0 || err != nil || x[0] != 2 || x[1] != 1 || x[3] != 2 {
		t.Errorf("the factor is %v; info %d, %v", x, info, err)
	}
	x = []float64{1, 2, 2, 1}
	if info, err := l.Call("dpotrf", Letter('L'), Int(2), Array(x), Int(2), Info()); info != 2 || err != nil {
		t.Errorf("of a matrix that is not positive definite: info %d, %v; want 2", info, err)
	}
}

func TestEachMovesItsArraysOnUntilAnInfo(t *testing.T) {
	l := numpys(t)
	a, b, c := []float64{1, 2, 3, 4}, []float64{5}, make([]float64, 4)
	if done, _, err := l.Each(4, "dgemm", Letter('N'), Letter('N'), Int(1), Int(1), Int(1), Float64(1), Array(a).Every(8), Int(1),
		Array(b), Int(1), Float64(0), Array(c).Every(8), Int(1)); done != 4 || err != nil {
		t.Fatal(done, err)
	}
	if want := [4]float64{5, 10, 15, 20}; [4]float64(c) != want {
		t.Errorf("the products are %v, want %v", c, want)
	}
	x := []float64{4, 9, -1, 16}
	done, info, err := l.Each(4, "dpotrf", Letter('U'), Int(1), Array(x).Every(8), Int(1), Info())
	if want := [4]float64{2, 3, -1, 16}; done != 2 || info != 1 || err != nil || [4]float64(x) != want {
		t.Errorf("%v after %d calls, info %d, %v; want %v after 2, info 1", x, done, info, err, want)
	}
}
