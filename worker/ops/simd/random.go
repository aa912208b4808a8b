package simd

// Draw is a kernel of array.random: it stands for a type of elements and a distribution.
type Draw int

// The draws, in the order of the C enumeration. DrawWords stores the words of the stream.
const (
	DrawWords Draw = iota
	DrawUniformFloat64
	DrawUniformFloat32
	DrawInt64
	DrawInt32
	DrawUint8
	DrawNormalFloat64
	DrawNormalFloat32
)

// Random is a range of the stream of words of a key, with the parameters of the distributions. It
// has the layout of struct simd_random.
type Random struct {
	Key uint64
	// Block is the first Philox block. A block has two words.
	Block uint64
	// Low and High bound uniform numbers.
	Low, High float64
	// Loc and Scale are the mean and the standard deviation of normal numbers.
	Loc, Scale float64
	// First is the smallest integer, Values the number of integers.
	First  int64
	Values uint64
}
