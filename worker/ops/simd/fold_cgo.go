//go:build cgo && linux

package simd

/*
#cgo noescape simd_fold_runs
#cgo nocallback simd_fold_runs
#cgo noescape simd_fold_lanes
#cgo nocallback simd_fold_lanes
#include "simd_fold.h"
*/
import "C"

import "unsafe"

func foldsOf(set int) map[foldKey]Fold {
	folds := map[foldKey]Fold{}
	rows := C.simd_folds(C.int(set))
	for i := 0; ; i++ {
		row := (*C.struct_simd_fold)(unsafe.Add(unsafe.Pointer(rows), i*int(unsafe.Sizeof(*rows))))
		if row.function == nil {
			return folds
		}
		key := foldKey{C.GoString(row.function), Type(row.from), Type(row.to)}
		folds[key] = Fold{uintptr(unsafe.Pointer(row.runs)), uintptr(unsafe.Pointer(row.lanes))}
	}
}

// Runs folds count runs of n elements each, which begin stride bytes after each other, and stores
// count accumulators at out. n is at least 1.
func (f Fold) Runs(in, out unsafe.Pointer, count, stride, n int64) {
	C.simd_fold_runs(C.uint64_t(f.runs), in, out, C.int64_t(count), C.int64_t(stride), C.int64_t(n))
}

// Lanes folds rows of n elements, which begin stride bytes after each other, into n accumulators.
// If begin is set, the first row replaces the accumulators.
func (f Fold) Lanes(accumulators, in unsafe.Pointer, n, stride, rows int64, begin bool) {
	C.simd_fold_lanes(C.uint64_t(f.lanes), accumulators, in, C.int64_t(n), C.int64_t(stride), C.int64_t(rows), flag(begin))
}
