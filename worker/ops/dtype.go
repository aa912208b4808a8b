package ops

import (
	"fmt"
	"strings"
)

// DType is the type of a tensor's elements. Elements are little endian.
type DType uint8

// The element types. Within a kind they are in the order of promotion.
const (
	Invalid    DType = iota
	Bool             // one byte, zero is false
	Uint8            // raw bytes and small counts
	Int32            // wraps around on overflow, like all integers here
	Int64            //
	Float32          // IEEE 754 binary32
	Float64          // IEEE 754 binary64
	Complex64        // two Float32: real, imaginary
	Complex128       // two Float64: real, imaginary
)

var dtypes = [...]struct {
	name string
	size int64
	kind kind
}{
	Invalid:    {"invalid", 0, 0},
	Bool:       {"bool", 1, boolKind},
	Uint8:      {"uint8", 1, intKind},
	Int32:      {"int32", 4, intKind},
	Int64:      {"int64", 8, intKind},
	Float32:    {"float32", 4, floatKind},
	Float64:    {"float64", 8, floatKind},
	Complex64:  {"complex64", 8, complexKind},
	Complex128: {"complex128", 16, complexKind},
}

// kind is a family of types. The kinds are ordered: a later kind can hold the values of an earlier
// one.
type kind uint8

const (
	boolKind kind = iota + 1
	intKind
	floatKind
	complexKind
)

// Size returns the number of bytes of one element.
func (d DType) Size() int64 { return dtypes[d].size }

// Alignment returns the number of bytes that an element's address must be a multiple of.
func (d DType) Alignment() int64 {
	if d.kind() == complexKind {
		return d.Size() / 2
	}
	return d.Size()
}

// String returns NumPy's name of the type.
func (d DType) String() string {
	if int(d) >= len(dtypes) {
		return fmt.Sprintf("dtype(%d)", uint8(d))
	}
	return dtypes[d].name
}

func (d DType) kind() kind { return dtypes[d].kind }

// ParseDType finds a type by NumPy's name for it.
func ParseDType(name string) (DType, error) {
	for d := Bool; int(d) < len(dtypes); d++ {
		if dtypes[d].name == name {
			return d, nil
		}
	}
	return Invalid, fmt.Errorf("unknown dtype %q: use one of %s", name, strings.Join(dtypeNames(), ", "))
}

func dtypeNames() (names []string) {
	for d := Bool; int(d) < len(dtypes); d++ {
		names = append(names, dtypes[d].name)
	}
	return names
}

// Promote returns the smallest type that holds the values of both, by NumPy's rules.
func Promote(a, b DType) DType {
	if a > b {
		a, b = b, a
	}
	wide := a == Int32 || a == Int64 || a == Float64
	switch {
	case b == Float32 && wide:
		return Float64
	case b == Complex64 && wide:
		return Complex128
	}
	return b
}

// realPart returns the type of a complex type's components; for other types it returns the type
// itself.
func (d DType) realPart() DType {
	switch d {
	case Complex64:
		return Float32
	case Complex128:
		return Float64
	}
	return d
}

// inexact returns the type in which functions such as sqrt compute for values of type d. It is
// Float32 where NumPy would use float16, which is not supported here.
func (d DType) inexact() DType {
	switch d {
	case Bool, Uint8:
		return Float32
	case Int32, Int64:
		return Float64
	}
	return d
}

// operand is the type of a value in an expression. A weak operand is a scalar like those of Python
// (held as Int64, Float64 or Complex128): in a promotion its kind counts, but not its width.
type operand struct {
	dtype DType
	weak  bool
}

func promoteOperands(operands ...operand) operand {
	var strong, weak DType
	for _, o := range operands {
		if o.weak {
			weak = Promote(weak, o.dtype)
		} else {
			strong = Promote(strong, o.dtype)
		}
	}
	switch {
	case strong == Invalid:
		return operand{weak, true}
	case weak.kind() <= strong.kind():
		return operand{strong, false}
	case weak.kind() == complexKind && strong == Float32:
		return operand{Complex64, false}
	}
	return operand{weak, false}
}
