package tables

import (
	"fmt"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow/memory"
)

// Call is what a computation gets from its caller.
type Call struct {
	// Memory gives zeroed memory, which belongs to the caller. It may panic.
	Memory memory.Allocator
	// Each calls f for parts of the numbers from 0 to n-1, perhaps several at a time: each part has
	// size numbers, the last one perhaps fewer.
	Each func(n, size int, f func(from, to int) error) error
	// Err returns why the computation must end, or nil.
	Err func() error
}

// None stands for a row that does not exist: all its values are null.
const None = ^uint32(0)

// partRows is the number of rows of one part of the work. It is a multiple of the bits of a byte,
// so that no two parts write to one byte of a bitmap.
const partRows = 1 << 16

// inOrder calls f for the parts of the numbers from 0 to n-1, one after the other.
func (c *Call) inOrder(n int, f func(from, to int)) error {
	for from := 0; from < n; from += partRows {
		if err := c.Err(); err != nil {
			return err
		}
		f(from, min(from+partRows, n))
	}
	return nil
}

// Room returns n zeroed elements. They have no pointers.
func Room[T any](c *Call, n int) []T {
	var zero T
	return elements[T](c.Memory.Allocate(n * int(unsafe.Sizeof(zero))))
}

// elements returns bytes as elements without pointers. A rest that is no element is left out.
func elements[T any](b []byte) []T {
	var zero T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(zero)))
}

// bytesOf returns elements without pointers as bytes.
func bytesOf[T any](list []T) []byte {
	var zero T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(list))), len(list)*int(unsafe.Sizeof(zero)))
}

func bufferOf[T any](list []T) *memory.Buffer { return memory.NewBufferBytes(bytesOf(list)) }

// Check returns an error if a table has more rows than the computations of this package can count.
func Check(rows int64) error {
	if rows >= int64(None) {
		return fmt.Errorf("it has %d rows, and %d can be counted: cut it by table.slice", rows, None-1)
	}
	return nil
}
