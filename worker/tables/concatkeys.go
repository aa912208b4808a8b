package tables

import (
	"encoding/binary"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
)

const (
	// maxKeyBytes is the size of the largest value of a dictionary that is compared with others, in
	// bytes, and the number of its elements.
	maxKeyBytes = 64 << 20
	// checkedBytes is the number of bytes of keys after which the call may end.
	checkedBytes = 4 << 20
	// stepBytes stands for the work of a value or element without bytes.
	stepBytes = 16
)

// valueKey has bytes that tell a value apart from all others of its type. They lie in the working
// memory of the call.
type valueKey struct {
	*Call
	bytes []byte
	// unchecked is the number of bytes since the call was asked whether it must end.
	unchecked int64
}

// set makes it the key of a value.
func (k *valueKey) set(data arrow.ArrayData, kind arrow.DataType, row int) error {
	k.bytes = k.bytes[:0]
	return k.value(data, kind, row)
}

// reserve makes room for n more bytes.
func (k *valueKey) reserve(n int64) error {
	size := int64(len(k.bytes)) + n
	if n > maxKeyBytes || size > maxKeyBytes {
		return fmt.Errorf("its dictionary has a value of more than %d bytes or elements: cast the column to the type of its values", maxKeyBytes)
	}
	if k.unchecked += n + stepBytes; k.unchecked > checkedBytes {
		k.unchecked = 0
		if err := k.Err(); err != nil {
			return err
		}
	}
	if size > int64(cap(k.bytes)) {
		k.bytes = append(anyRoom[byte](k.Call, int(max(2*size, 256)))[:0], k.bytes...)
	}
	return nil
}

// add appends the bytes of a text, or of a value of fixed width.
func (k *valueKey) add(b []byte) error {
	err := k.reserve(int64(len(b)))
	if err == nil {
		k.bytes = append(k.bytes, b...)
	}
	return err
}

// addCount appends a number of bytes or elements.
func (k *valueKey) addCount(n int64) error {
	err := k.reserve(binary.MaxVarintLen64)
	if err == nil {
		k.bytes = binary.AppendUvarint(k.bytes, uint64(n))
	}
	return err
}

// value appends a value.
func (k *valueKey) value(data arrow.ArrayData, kind arrow.DataType, row int) error {
	s, err := shapeOf(kind)
	if err != nil {
		return err
	}
	if row < 0 || row >= data.Len() {
		return fmt.Errorf("it has %d values, and value %d is needed: the table contradicts itself, write it anew", data.Len(), row)
	}
	at := int64(data.Offset() + row)
	if valid := bufferAt(data, 0); s.hasValidity() {
		null := data.NullN() != 0 && len(valid) > 0 && bit(valid, at) == 0
		if null {
			return k.add([]byte{0})
		}
		if err := k.add([]byte{1}); err != nil {
			return err
		}
	}
	if s.dictionary != nil {
		width := int64(s.width)
		code := codesOf(bufferAt(data, 1)[at*width:(at+1)*width], s.width)(0)
		if code >= uint64(data.Dictionary().Len()) {
			return fmt.Errorf("a value has the code %d of %d values: the table contradicts itself, write it anew", code, data.Dictionary().Len())
		}
		return k.value(data.Dictionary(), s.dictionary.ValueType, int(code))
	}
	switch s.form {
	case formNull:
		return k.reserve(0)
	case formBits:
		return k.add([]byte{bit(bufferAt(data, 1), at)})
	case formFixed:
		return k.add(bufferAt(data, 1)[at*int64(s.width) : (at+1)*int64(s.width)])
	case formText:
		text := bufferAt(data, 2)
		from, end, err := offsetsOf(bufferAt(data, 1), s.width).checked(at, int64(len(text)))
		if err != nil {
			return err
		}
		if err := k.addCount(end - from); err != nil {
			return err
		}
		return k.add(text[from:end])
	case formViews:
		return k.view(data, &elements[view](bufferAt(data, 1))[at])
	case formList:
		from, end, err := offsetsOf(bufferAt(data, 1), s.width).checked(at, int64(data.Children()[0].Len()))
		if err != nil {
			return err
		}
		if err := k.addCount(end - from); err != nil {
			return err
		}
		return k.elements(data.Children()[0], kind, from, end)
	case formFixedList:
		return k.elements(data.Children()[0], kind, at*int64(s.items), (at+1)*int64(s.items))
	case formStruct:
		for i, field := range childTypes(kind) {
			if err := k.value(data.Children()[i], field.Type, int(at)); err != nil {
				return err
			}
		}
		return nil
	case formSparse, formDense, formRuns:
	}
	return fmt.Errorf("dictionaries of type %s that differ cannot be joined: cast the column to the type of its values", kind)
}

func (k *valueKey) view(data arrow.ArrayData, v *view) error {
	long, err := v.long()
	if err != nil {
		return err
	}
	if err := k.addCount(int64(v.size)); err != nil {
		return err
	}
	if !long {
		return k.add(bytesOf([]view{*v})[4 : 4+v.size])
	}
	text, err := v.text(data)
	if err != nil {
		return err
	}
	return k.add(text)
}

// elements appends elements of lists of a type. Nulls without a bitmap are told apart by their
// number.
func (k *valueKey) elements(data arrow.ArrayData, kind arrow.DataType, from, end int64) error {
	of := childTypes(kind)[0].Type
	if storage(of).ID() == arrow.NULL {
		return nil
	}
	if err := k.reserve(end - from); err != nil { // an element has a byte at least
		return err
	}
	for at := from; at < end; at++ {
		if err := k.value(data, of, int(at)); err != nil {
			return err
		}
	}
	return nil
}
