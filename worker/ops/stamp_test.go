package ops

import (
	"context"
	"strings"
	"testing"
)

func TestStampsTellWrongBytes(t *testing.T) {
	stampOf := func(key, bytes int64, attempt int) *Tensor {
		ctx := WithEnv(t.Context(), Env{Attempt: attempt})
		return stamped(ctx, t, key, bytes, []any{})
	}
	for _, bytes := range []int64{32, 33, 39, 40, 1000} {
		x, other := stampOf(7, bytes, 2), stampOf(8, bytes, 2)
		stamped(t.Context(), t, 1, 32, []any{int64(7), int64(8)}, x, other)
		if _, err := tryStamp(t.Context(), t, 1, 32, []any{int64(8)}, x); err == nil || !strings.Contains(err.Error(), "key 7, generation 2") {
			t.Errorf("%d bytes of another key: %v", bytes, err)
		}
		for i := range x.Data {
			mixed := stampOf(7, bytes, 2)
			mixed.Data[i] ^= 1
			if _, err := tryStamp(t.Context(), t, 1, 32, []any{int64(7)}, mixed); err == nil {
				t.Errorf("%d bytes: byte %d may be anything", bytes, i)
			}
		}
		if bytes > 40 {
			mixed := stampOf(7, bytes, 2)
			copy(mixed.Data[bytes/2:], stampOf(7, bytes, 3).Data[bytes/2:])
			if _, err := tryStamp(t.Context(), t, 1, 32, []any{int64(7)}, mixed); err == nil {
				t.Errorf("%d bytes: half of another generation passes", bytes)
			}
		}
	}
}

func stamped(ctx context.Context, t *testing.T, key, bytes int64, keys []any, inputs ...any) *Tensor {
	t.Helper()
	out, err := tryStamp(ctx, t, key, bytes, keys, inputs...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func tryStamp(ctx context.Context, t *testing.T, key, bytes int64, keys []any, inputs ...any) (*Tensor, error) {
	t.Helper()
	op, err := NewRegistry().Lookup("bench.stamp")
	if err != nil {
		t.Fatal(err)
	}
	out, err := op.Run(ctx, Args{Positional: append([]any{key, bytes, keys}, inputs...)}, NewTensor)
	if err != nil {
		return nil, err
	}
	return out.(*Tensor), nil
}
