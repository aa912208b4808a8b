package ops

// leading are the first axes of a tensor: those that number its parts, such as its matrices or its
// lanes. The other axes are those of a part.
type leading struct{ shape, strides []int64 }

// newLeading returns the axes before the last two of t, broadcast to batch.
func newLeading(t *Tensor, batch []int64) leading {
	n := t.NDim() - 2
	view := (&Tensor{Shape: t.Shape[:n], Strides: t.Strides[:n]}).broadcastTo(batch)
	return leading{batch, view.Strides}
}

// offset returns the place of a part in bytes. Parts are numbered in C order.
func (l leading) offset(part int64) (at int64) {
	for i := len(l.shape) - 1; i >= 0; i-- {
		at += part % l.shape[i] * l.strides[i]
		part /= l.shape[i]
	}
	return at
}

// subtensor returns a part of t, whose first axes number the parts.
func subtensor(t *Tensor, axes int, part int64) *Tensor {
	view := *t
	view.Shape, view.Strides = t.Shape[axes:], t.Strides[axes:]
	view.Offset += leading{t.Shape[:axes], t.Strides[:axes]}.offset(part)
	return &view
}
