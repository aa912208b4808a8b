package sharedlib

import (
	"testing"
	"unsafe"
)

// TestMemoryOfAnAddressDoesNotMoveWithTheStack: a local variable would move when the stack of its
// goroutine grows, and a library would then read other memory.
func TestMemoryOfAnAddressDoesNotMoveWithTheStack(t *testing.T) {
	moved := make(chan bool)
	go func() {
		var x [4]uint64
		before := Address(unsafe.Pointer(&x))
		x[0] = grow(1000)
		moved <- before != uint64(uintptr(unsafe.Pointer(&x)))
	}()
	if <-moved {
		t.Error("the memory has moved")
	}
}

// grow makes the stack grow by more than depth KiB.
//
//go:noinline
func grow(depth int) uint64 {
	var frame [128]uint64
	if depth > 0 {
		frame[depth%128] = grow(depth - 1)
	}
	return frame[0] + frame[depth%128]
}
