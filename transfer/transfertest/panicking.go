package transfertest

import (
	"time"

	"github.com/millrace/millrace/transfer"
)

// Panicking is a transfer.Source whose Lease panics when a reader asks for task 13. It shows that a
// panic in a source ends one request, and not the process.
type Panicking struct{ *Objects }

// Lease is part of transfer.Source.
func (p Panicking) Lease(reader transfer.Reader, refs []transfer.Ref, ttl time.Duration) []transfer.Leased {
	for _, r := range refs {
		if r.Task == 13 {
			panic("thirteen")
		}
	}
	return p.Objects.Lease(reader, refs, ttl)
}
