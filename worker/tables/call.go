package tables

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow/memory"
)

// Call is what a computation gets from its caller.
type Call struct {
	// Scratch returns working memory with arbitrary content, aligned to 8 bytes. It lives as long
	// as the call.
	Scratch func(bytes int64) ([]byte, error)
	// Each calls do for the numbers from 0 to n-1, each once, in any order, perhaps several at a
	// time. It returns the first error.
	Each func(n int, do func(i int) error) error
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

// inParts calls f for parts of the numbers from 0 to n-1, as Each does: each part has size numbers,
// the last one perhaps fewer.
func (c *Call) inParts(n, size int, f func(from, to int) error) error {
	return c.Each((n+size-1)/size, func(part int) error { return f(part*size, min((part+1)*size, n)) })
}

// Room returns n zeroed elements without pointers. It panics with the error of Scratch, and the
// maker of the call turns this panic into an error.
func Room[T any](c *Call, n int) []T {
	list := anyRoom[T](c, n)
	clear(list)
	return list
}

// anyRoom is Room with arbitrary content.
func anyRoom[T any](c *Call, n int) []T {
	var zero T
	size := int64(unsafe.Sizeof(zero))
	if int64(n) > math.MaxInt64/size {
		n = math.MaxInt64 / int(size) // more than any memory
	}
	b, err := c.Scratch(int64(n) * size)
	if err != nil {
		panic(err)
	}
	return elements[T](b)
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
