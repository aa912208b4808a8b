package transfer

import (
	"context"

	"github.com/millrace/millrace/memory"
)

// Batcher is a Sink that takes many objects at once, for paths that know of as many: what
// is asked of it for a thousand objects costs little more than for one.
type Batcher interface {
	Sink
	// PlaceBatch is Place for the objects that heads describe, which lie side by side in the
	// request, from index first on. It appends to into where their frames go, one behind the
	// other, and says in which space. If those are fewer objects than it was asked for, the
	// error is that of the next one; without an error the rest is to be asked for again, and
	// it was at least one.
	PlaceBatch(ctx context.Context, first int, heads []Head, into []memory.Frame) (Placed, error)
	// DoneBatch is Done without an error, for count objects from index first on.
	DoneBatch(first, count int)
}

// Placed are places of objects.
type Placed struct {
	// Objects is how many have places.
	Objects int
	// Space is where Frames lie: of all objects, those of each side by side.
	Space  memory.Space
	Frames []memory.Frame
}
