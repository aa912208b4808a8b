package millrace

import (
	"context"
	"fmt"
	"math"
	"reflect"
)

// Get waits for the task and returns its result as a T. T is one of the types that Value returns,
// a number type, a slice or string-keyed map of such types, or a []Element for an array. An integer
// type must represent the value exactly; floating-point and complex types round it.
func Get[T any](ctx context.Context, f *Future) (T, error) {
	var zero T
	v, err := f.Value(ctx)
	if err != nil {
		return zero, err
	}
	return convert[T](f.key, v)
}

// Gather waits for all tasks and returns their results as T, in order. Results on the same worker
// are fetched together.
func Gather[T any](ctx context.Context, futures ...*Future) ([]T, error) {
	if err := WaitAll(ctx, futures...); err != nil {
		return nil, err
	}
	out := make([]T, len(futures))
	var far []*Future
	var at []int
	for i, f := range futures {
		end, err := f.wait(ctx)
		if err != nil {
			return nil, err
		}
		if !end.isInline {
			far, at = append(far, f), append(at, i)
			continue
		}
		if out[i], err = Get[T](ctx, f); err != nil {
			return nil, err
		}
	}
	if len(far) == 0 {
		return out, nil
	}
	objects, err := far[0].client.fetch(ctx, far, nil)
	if err != nil {
		return nil, err
	}
	for i, o := range objects {
		v, err := goValue(o.Value, o.Frames)
		if err != nil {
			return nil, fmt.Errorf("result of task %q: %w", far[i].key, err)
		}
		if out[at[i]], err = convert[T](far[i].key, v); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func convert[T any](key string, v any) (T, error) {
	if out, ok := v.(T); ok {
		return out, nil
	}
	var out T
	target := reflect.ValueOf(&out).Elem()
	if v == nil && target.Kind() == reflect.Interface {
		return out, nil
	}
	if err := assign(target, v); err != nil {
		return out, fmt.Errorf("millrace: result of task %q: %w", key, err)
	}
	return out, nil
}

func mismatch(dst reflect.Value, v any) error {
	if v == nil {
		return fmt.Errorf("is null, not %s", dst.Type())
	}
	if o, ok := v.(Opaque); ok {
		return fmt.Errorf("is a %s of type %q, which only its own language understands; return numbers, text, lists, maps or arrays instead", o.Encoding, o.TypeName)
	}
	return fmt.Errorf("is a %T, not %s", v, dst.Type())
}

// assign stores v, a result of Value, in dst.
func assign(dst reflect.Value, v any) error {
	if v != nil && reflect.TypeOf(v).AssignableTo(dst.Type()) {
		dst.Set(reflect.ValueOf(v))
		return nil
	}
	if a, ok := v.(Array); ok {
		return assignArray(dst, a)
	}
	switch dst.Kind() {
	case reflect.Bool:
		b, ok := v.(bool)
		if !ok {
			return mismatch(dst, v)
		}
		dst.SetBool(b)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, ok := integer(v)
		if !ok || dst.OverflowInt(n) {
			return mismatch(dst, v)
		}
		dst.SetInt(n)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n, ok := integer(v)
		if !ok || n < 0 || dst.OverflowUint(uint64(n)) {
			return mismatch(dst, v)
		}
		dst.SetUint(uint64(n))
	case reflect.Float32, reflect.Float64:
		switch x := v.(type) {
		case float64:
			dst.SetFloat(x)
		case int64:
			dst.SetFloat(float64(x))
		default:
			return mismatch(dst, v)
		}
	case reflect.Complex64, reflect.Complex128:
		switch x := v.(type) {
		case complex128:
			dst.SetComplex(x)
		case float64:
			dst.SetComplex(complex(x, 0))
		case int64:
			dst.SetComplex(complex(float64(x), 0))
		default:
			return mismatch(dst, v)
		}
	case reflect.String:
		s, ok := v.(string)
		if !ok {
			return mismatch(dst, v)
		}
		dst.SetString(s)
	case reflect.Slice:
		list, ok := v.([]any)
		if !ok {
			return mismatch(dst, v)
		}
		out := reflect.MakeSlice(dst.Type(), len(list), len(list))
		for i, item := range list {
			if err := assign(out.Index(i), item); err != nil {
				return fmt.Errorf("element %d %w", i, err)
			}
		}
		dst.Set(out)
	case reflect.Map:
		m, ok := v.(map[string]any)
		if !ok || dst.Type().Key().Kind() != reflect.String {
			return mismatch(dst, v)
		}
		out := reflect.MakeMapWithSize(dst.Type(), len(m))
		for name, item := range m {
			value := reflect.New(dst.Type().Elem()).Elem()
			if err := assign(value, item); err != nil {
				return fmt.Errorf("entry %q %w", name, err)
			}
			out.SetMapIndex(reflect.ValueOf(name).Convert(dst.Type().Key()), value)
		}
		dst.Set(out)
	case reflect.Pointer:
		if v == nil {
			dst.SetZero()
			return nil
		}
		p := reflect.New(dst.Type().Elem())
		if err := assign(p.Elem(), v); err != nil {
			return err
		}
		dst.Set(p)
	default:
		if v == nil && dst.Kind() == reflect.Interface {
			dst.SetZero()
			return nil
		}
		return mismatch(dst, v)
	}
	return nil
}

// integer returns v if it is a whole number.
func integer(v any) (int64, bool) {
	switch x := v.(type) {
	case int64:
		return x, true
	case float64:
		if x == math.Trunc(x) && math.Abs(x) < 1<<53 {
			return int64(x), true
		}
	}
	return 0, false
}

// assignArray stores an array in a slice of its element type, or a 0-d array in a number.
func assignArray(dst reflect.Value, a Array) error {
	elements, err := arrayElements(a)
	if err != nil {
		return err
	}
	if reflect.TypeOf(elements).AssignableTo(dst.Type()) {
		dst.Set(reflect.ValueOf(elements))
		return nil
	}
	if len(a.Shape) == 0 {
		return assign(dst, scalarOf(reflect.ValueOf(elements).Index(0)))
	}
	return fmt.Errorf("is an array %s, not %s", a, dst.Type())
}

func scalarOf(v reflect.Value) any {
	switch {
	case v.CanInt():
		return v.Int()
	case v.CanUint():
		return int64(v.Uint())
	case v.CanFloat():
		return v.Float()
	case v.CanComplex():
		return v.Complex()
	}
	return v.Interface()
}

func arrayElements(a Array) (any, error) {
	switch a.DType {
	case Bool:
		return Slice[bool](a)
	case Uint8:
		return Slice[uint8](a)
	case Int32:
		return Slice[int32](a)
	case Int64:
		return Slice[int64](a)
	case Float32:
		return Slice[float32](a)
	case Float64:
		return Slice[float64](a)
	case Complex64:
		return Slice[complex64](a)
	case Complex128:
		return Slice[complex128](a)
	}
	return nil, fmt.Errorf("is an array of unknown type %s", a.DType)
}
