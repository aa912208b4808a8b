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
	if x.Len() == 0 {
		return ctx.Err()
	}
	if library := envOf(ctx).Linalg; library != nil && library.Has(reflectionRoutines...) {
		return factorByLibrary(ctx, q, r, x)
	}
	m, n := int(x.Shape[0]), int(x.Shape[1])
	a, err := float64Copy(ctx, x)
	if err != nil {
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

// factorisation is a way to compute r and q by the library. factor comes first.
type factorisation interface {
	factor(ctx context.Context) error
	triangle() *Tensor
	// storeQ stores the orthogonal factor q in out, or the product of q and a square matrix if that
	// is not nil.
	storeQ(ctx context.Context, out, square *Tensor) error
}

// factorMatrix factors x, which is float32 or float64. q may be wanted.
func factorMatrix(ctx context.Context, x *Tensor, q bool) (factorisation, error) {
	l := float64Algebra(ctx)
	var f factorisation
	var err error
	if isTall(int(x.Shape[0]), int(x.Shape[1])) {
		f, err = newTallQR(ctx, l, x, q)
	} else {
		f, err = newBlockQR(ctx, l, x)
	}
	if err != nil {
		return nil, err
	}
	return f, f.factor(ctx)
}

func factorByLibrary(ctx context.Context, q, r, x *Tensor) error {
	x, err := floatMatrix(ctx, x)
	if err != nil {
		return err
	}
	f, err := factorMatrix(ctx, x, q != nil)
	if err != nil {
		return err
	}
	if err := moveAll(ctx, r, f.triangle()); err != nil || q == nil {
		return err
	}
	return f.storeQ(ctx, q, nil)
}
