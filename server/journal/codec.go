package journal

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math"
	"time"
)

// codec writes values, or reads them: the same functions do both, so that they cannot differ. Each
// takes a pointer to the value.
type codec struct {
	reading bool
	// data is what was written, or what is left to read.
	data []byte
	// err is the first error of reading; later values are then zero.
	err error
	// large collects, while writing, the long values, whose sizes are largeSize together. load
	// finds such a value.
	large     []large
	largeSize int
	load      func(hash) ([]byte, error)
}

// hash names a long value.
type hash [sha256.Size]byte

// large is a long value: the records have only its hash. The journal's goroutine computes the hash,
// and writes it into the records at the offset.
type large struct {
	offset int
	value  []byte
	hash   hash
}

// largeBytes is the size from which a value is kept apart from the records.
const largeBytes = 64 << 10

var errShort = errors.New("a record ends too early")

func (c *codec) fail(err error) {
	if c.err == nil {
		c.err = err
	}
	c.data = nil
}

// whole codes an integer. A small one, also a negative one, takes one byte.
func whole[T ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~int32 | ~int64](c *codec, p *T) {
	if !c.reading {
		c.data = binary.AppendVarint(c.data, int64(*p))
		return
	}
	x, n := binary.Varint(c.data)
	if n <= 0 {
		c.fail(errShort)
		*p = 0
		return
	}
	c.data = c.data[n:]
	*p = T(x)
}

func (c *codec) flag(p *bool) {
	var b uint8
	if *p {
		b = 1
	}
	whole(c, &b)
	*p = b != 0
}

func (c *codec) float(p *float64) {
	bits := math.Float64bits(*p)
	whole(c, &bits)
	*p = math.Float64frombits(bits)
}

func (c *codec) duration(p *time.Duration) { whole(c, p) }

// take returns the next n bytes while reading.
func (c *codec) take(n uint64) []byte {
	if n > uint64(len(c.data)) {
		c.fail(errShort)
		return nil
	}
	taken := c.data[:n:n]
	c.data = c.data[n:]
	return taken
}

func (c *codec) text(p *string) {
	n := uint64(len(*p))
	whole(c, &n)
	if c.reading {
		*p = string(c.take(n))
	} else {
		c.data = append(c.data, *p...)
	}
}

// bytes codes a short slice. nil and empty are the same.
func (c *codec) bytes(p *[]byte) {
	n := uint64(len(*p))
	whole(c, &n)
	if !c.reading {
		c.data = append(c.data, *p...)
	} else if *p = nil; n > 0 {
		*p = bytes.Clone(c.take(n))
	}
}

// fixed codes an array.
func (c *codec) fixed(p []byte) {
	if c.reading {
		copy(p, c.take(uint64(len(p))))
	} else {
		c.data = append(c.data, p...)
	}
}

// payload codes a slice that may be long: a long one is kept apart.
func (c *codec) payload(p *[]byte) {
	apart := len(*p) >= largeBytes
	c.flag(&apart)
	switch {
	case !apart:
		c.bytes(p)
	case !c.reading:
		c.large = append(c.large, large{offset: len(c.data), value: *p})
		c.largeSize += len(*p)
		c.data = append(c.data, make([]byte, sha256.Size)...)
	default:
		var h hash
		c.fixed(h[:])
		if c.err != nil {
			return
		}
		value, err := c.load(h)
		if err != nil {
			c.fail(err)
		}
		*p = value
	}
}

// list codes a slice, element by element. nil and empty are the same.
func list[T any](c *codec, p *[]T, element func(*codec, *T)) {
	n := uint64(len(*p))
	whole(c, &n)
	if !c.reading {
		for i := range *p {
			element(c, &(*p)[i])
		}
		return
	}
	*p = nil
	// Each element takes a byte at least, so a damaged length cannot ask for much memory.
	if n > uint64(len(c.data)) {
		c.fail(errShort)
		return
	}
	if n > 0 {
		*p = make([]T, n)
	}
	for i := range *p {
		element(c, &(*p)[i])
	}
}

func texts(c *codec, p *[]string) { list(c, p, (*codec).text) }
