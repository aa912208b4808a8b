package transfer

import (
	"context"

	"github.com/millrace/millrace/memory"
)

// Batcher is a Sink that takes many objects in one call. It is for paths that find many objects at
// once: a call for a thousand objects costs little more than a call for one.
type Batcher interface {
	// PlaceBatch is Place for many objects. heads describes objects that are consecutive in the
	// request; the first has index first. PlaceBatch appends the places of their frames to into,
	// object after object, and returns in which space they lie. It may place only the first of the
	// objects, but at least one if it returns no error; the caller asks again for the rest. An
	// error is that of the first object without a place.
	PlaceBatch(ctx context.Context, first int, heads []Head, into []memory.Frame) (Placed, error)
	// DoneBatch is Done without an error, for the count objects that begin at index first.
	DoneBatch(first, count int)
}

// Placed describes the places of several objects.
type Placed struct {
	// Objects is the number of objects that have places.
	Objects int
	// Space contains Frames. Frames are those of all the objects, object after object.
	Space  memory.Space
	Frames []memory.Frame
}
