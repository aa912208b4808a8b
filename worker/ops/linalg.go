package ops

import "context"

func linalgOps() []*Op {
	return []*Op{
		{
			Name: "array.qr",
			Doc:  "Factors a matrix into one with orthonormal columns and an upper triangular one.",
			Details: "The computation is in float64; the results for float32 are rounded. On the host the signs are those of LAPACK. " +
				"On a GPU the diagonal of r is positive if the matrix has at least 4 rows a column.",
			Params: []Param{
				{Name: "x", Type: TensorType, Required: true, Doc: "a matrix, m by n, of real numbers"},
				{Name: "mode", Type: StringType, Default: "reduced", Doc: "`reduced`, or `r`: r alone, which takes less time and no memory for q"},
			},
			Result: "a list of two tensors: q is m by min(m, n), r is min(m, n) by n. They are float32 if `x` is, otherwise float64. " +
				"With `mode` r it is the tensor r",
			Errors: []string{
				"INVALID_ARGUMENT if `x` is no matrix, or complex",
			},
			Libraries: []string{"cusolver", "cublas", "nvrtc"},
			Example:   Example{[]string{`{"key": "qr", "op": "array.qr", "args": [[[3, 0], [4, 5]]]}`}, "[[[-0.6, -0.8], [-0.8, 0.6]], [[-5, -4], [0, 3]]]"},
			plan:      planQR,
		},
		{
			Name: "array.svd",
			Doc:  "Computes the singular values of a matrix, and its singular vectors.",
			Details: "The decomposition is thin: `x` is the product of u, a diagonal matrix of s, and vt. The computation is in " +
				"float64; the results for float32 are rounded. The signs of the vectors may differ between devices.",
			Params: []Param{
				{Name: "x", Type: TensorType, Required: true, Doc: "a matrix, m by n, of real numbers; with k = min(m, n)"},
				{Name: "vectors", Type: BoolType, Default: true, Doc: "false: compute s alone, which takes a fraction of the time"},
			},
			Result: "a list of three tensors: u is m by k, s has k values in descending order, vt is k by n. They are float32 if " +
				"`x` is, otherwise float64. Without `vectors` it is the tensor s",
			Errors: []string{
				"INVALID_ARGUMENT if `x` is no matrix, or complex",
				"OP_FAILED if the values do not converge, as with NaN or infinity in `x`",
			},
			Libraries: []string{"cusolver", "cublas", "nvrtc"},
			Example:   Example{[]string{`{"key": "svd", "op": "array.svd", "args": [[[3, 0], [0, 4]]]}`}, "[[[0, 1], [1, 0]], [4, 3], [[0, 1], [1, 0]]]"},
			plan:      planSVD,
		},
	}
}

func realMatrix(c *call) (*Tensor, DType, error) {
	x := c.tensor("x")
	if x.NDim() != 2 {
		return nil, 0, c.bad("x", "expected a matrix, got %s", describe(x))
	}
	if x.DType.kind() == complexKind {
		return nil, 0, c.bad("x", "%v is not supported: expected real numbers", x.DType)
	}
	if x.DType.kind() <= intKind {
		return x, Float64, nil
	}
	return x, x.DType, nil
}

// float64Copy copies the matrix to working memory, as float64, to be factored in place.
func float64Copy(ctx context.Context, x *Tensor) ([]float64, error) {
	t, err := contiguousIn(ctx, x, Float64)
	if err != nil {
		return nil, err
	}
	return elements[float64](t), ctx.Err()
}

// store writes values to out, rounded to its type.
func store(ctx context.Context, out *Tensor, values []float64) error {
	if len(values) == 0 {
		return nil
	}
	bytes := block[byte](slicePointer(values), 8*len(values))
	return castInto(ctx, out, contiguous(Float64, out.Shape, bytes))
}
