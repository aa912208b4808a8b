package store

import (
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory/ledger"
)

// Pin finds a sealed object and pins its bytes in place, in the slab, for an attempt; ok is false
// if they are not there.
func (s *Store) Pin(id ledger.ObjectID, task ids.TaskID, attempt ids.Attempt) (Object, bool) {
	return s.pin(id, inputPin(task, attempt))
}
