package cuda

import (
	"encoding/binary"
	"math"
	"slices"
)

// parameters are the parameters of a kernel, laid out as in a C structure.
type parameters struct{ bytes []byte }

func (p *parameters) align(n int) {
	for len(p.bytes)%n != 0 {
		p.bytes = append(p.bytes, 0)
	}
}

func (p *parameters) u64(values ...uint64) *parameters {
	p.align(8)
	for _, v := range values {
		p.bytes = binary.LittleEndian.AppendUint64(p.bytes, v)
	}
	return p
}

func (p *parameters) i64(values ...int64) *parameters {
	for _, v := range values {
		p.u64(uint64(v))
	}
	return p
}

func (p *parameters) i32(values ...int32) *parameters {
	p.align(4)
	for _, v := range values {
		p.bytes = binary.LittleEndian.AppendUint32(p.bytes, uint32(v))
	}
	return p
}

func (p *parameters) f64(values ...float64) *parameters {
	for _, v := range values {
		p.u64(math.Float64bits(v))
	}
	return p
}

// fill appends zeros until there are n bytes.
func (p *parameters) fill(n int) {
	if p.bytes = slices.Grow(p.bytes, max(n-len(p.bytes), 0)); n > len(p.bytes) {
		clear(p.bytes[len(p.bytes):n])
		p.bytes = p.bytes[:n]
	}
}

// raw appends bytes at the given alignment.
func (p *parameters) raw(align int, b []byte) *parameters {
	p.align(align)
	p.bytes = append(p.bytes, b...)
	return p
}
