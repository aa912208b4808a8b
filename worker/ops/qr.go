package ops

import "context"

func planQR(c *call) (*Planned, error) {
	x, dtype, err := realMatrix(c)
	if err != nil {
		return nil, err
	}
	m, n := x.Shape[0], x.Shape[1]
	k := min(m, n)
	switch mode := c.string("mode"); mode {
	case "r":
		return single(dtype, []int64{k, n}, &FactoringQR{x, true}, func(ctx context.Context, out *Tensor) error {
			return qrInto(ctx, nil, out, x)
		}), nil
	case "reduced":
		return several([]Output{{dtype, []int64{m, k}}, {dtype, []int64{k, n}}}, &FactoringQR{x, false}, func(ctx context.Context, outs []*Tensor) error {
			return qrInto(ctx, outs[0], outs[1], x)
		}), nil
	default:
		modes := []string{"reduced", "r"}
		return nil, c.bad("mode", "expected one of %v, got %q%s", modes, mode, suggest(mode, modes))
	}
}

// qrInto factors x. q may be nil if it is not wanted.
func qrInto(ctx context.Context, q, r, x *Tensor) error {
	m, n := int(x.Shape[0]), int(x.Shape[1])
	a, err := float64Copy(ctx, x)
	if err != nil || len(a) == 0 {
		return err
	}
	left, right, err := qr(ctx, a, m, n, q != nil)
	if err != nil {
		return err
	}
	if q != nil {
		if err := store(ctx, q, left); err != nil {
			return err
		}
	}
	return store(ctx, r, right)
}
