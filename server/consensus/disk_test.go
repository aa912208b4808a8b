package consensus

import (
	"errors"
	"testing"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"
)

// TestACutLogIsReadAfterARestart: a new leader cuts the end of a follower's log off. All before it
// is there when the follower starts again.
func TestACutLogIsReadAfterARestart(t *testing.T) {
	path := t.TempDir()
	for start := range 2 {
		var meta metadb.BoltMetaDB
		store, err := wal.Open(path, wal.WithMetaStore(&meta))
		if err != nil {
			t.Fatal(err)
		}
		if start == 0 {
			for i := uint64(1); i <= 10; i++ {
				if err := store.StoreLog(&raft.Log{Index: i, Term: 1}); err != nil {
					t.Fatal(err)
				}
			}
			if err := store.DeleteRange(10, 10); err != nil {
				t.Fatal(err)
			}
		}
		for i := uint64(1); i <= 9; i++ {
			var entry raft.Log
			if err := store.GetLog(i, &entry); err != nil || entry.Index != i {
				t.Errorf("start %d: entry %d: %v", start, i, err)
			}
		}
		if err := errors.Join(store.Close(), meta.Close()); err != nil {
			t.Fatal(err)
		}
	}
}
