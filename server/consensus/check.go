package consensus

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// The libraries that keep the log panic where what they read makes no sense: raft-wal and bbolt at
// once, and Raft in a goroutine of its own. So all that Raft will read is read here before it
// begins, and Raft reads it once more. With one read, the whole log would have to stay in memory
// between the check and Raft; the second read finds it in the cache of the system.

// openLog opens the log of Raft in a directory. It never panics.
func openLog(path string, meta *metadb.BoltMetaDB, logger hclog.Logger) (store *wal.WAL, err error) {
	var kept types.PersistentState
	if err := guarded(func() (err error) {
		if kept, err = meta.Load(path); err == nil && len(kept.Segments) > 0 {
			err = rewrite(meta, kept)
		}
		return err
	}); err != nil {
		return nil, damaged(filepath.Join(path, metadb.FileName), err)
	}
	if err := segmentsOf(path, kept); err != nil {
		return nil, err
	}
	if err := guarded(func() (err error) {
		store, err = wal.Open(path, wal.WithLogger(logger), wal.WithMetaStore(meta))
		return err
	}); err != nil {
		return nil, damaged(filepath.Join(path, "*.wal"), err)
	}
	return store, nil
}

// rewrite writes what is there so often that each free page is used: only then does bbolt find that
// its list of them is damaged.
func rewrite(meta *metadb.BoltMetaDB, kept types.PersistentState) (err error) {
	for range 4 {
		err = errors.Join(err, meta.CommitState(kept))
	}
	return err
}

// segmentsOf looks for the files of a log. raft-wal takes a last one that is missing for one that
// was not made yet, and removes those that it does not know.
func segmentsOf(path string, kept types.PersistentState) error {
	found, err := filepath.Glob(filepath.Join(path, "*.wal"))
	if err != nil {
		return err
	}
	missing := ""
	for _, s := range kept.Segments {
		name := filepath.Join(path, segment.FileName(s))
		if i := slices.Index(found, name); i >= 0 {
			found = slices.Delete(found, i, i+1)
		} else {
			missing = name
		}
	}
	if missing != "" && len(found) > 0 {
		return damaged(filepath.Join(path, metadb.FileName), fmt.Errorf("it names %s, which is missing, and does not name %s", missing, strings.Join(found, ", ")))
	}
	return nil
}

// checkLog reads all that Raft reads when it begins.
func checkLog(path string, store *wal.WAL, snapshots *raft.FileSnapshotStore) error {
	taken := uint64(0) // the last entry within a snapshot
	list, err := snapshots.List()
	if err != nil {
		return err
	}
	for _, s := range list {
		_, content, err := snapshots.Open(s.ID)
		if err != nil {
			return damaged(filepath.Join(path, "snapshots", s.ID, "state.bin"), err)
		}
		taken = max(taken, s.Index)
		if err := content.Close(); err != nil {
			return err
		}
	}
	if dirs, err := os.ReadDir(filepath.Join(path, "snapshots")); err != nil {
		return err
	} else if i := slices.IndexFunc(dirs, func(d os.DirEntry) bool { return d.IsDir() && !strings.HasSuffix(d.Name(), ".tmp") }); i >= 0 && len(list) == 0 {
		return damaged(filepath.Join(path, "snapshots", dirs[i].Name(), "meta.json"), errors.New("it cannot be read"))
	}
	var first, last uint64
	if err := guarded(func() (err error) {
		if first, err = store.FirstIndex(); err == nil {
			last, err = store.LastIndex()
		}
		return err
	}); err != nil {
		return damaged(filepath.Join(path, "*.wal"), err)
	}
	if first > taken+1 {
		return damaged(filepath.Join(path, "snapshots"), fmt.Errorf("the log begins with entry %d, and the last snapshot that can be read ends with entry %d", first, taken))
	}
	term := uint64(0)
	for i := max(first, 1); i <= last; i++ {
		if err := guarded(func() error {
			var log raft.Log
			if err := store.GetLog(i, &log); err != nil {
				return err
			}
			if log.Index != i || log.Term < term {
				return fmt.Errorf("it says that it is entry %d of term %d, behind one of term %d", log.Index, log.Term, term)
			}
			term = log.Term
			switch log.Type {
			case raft.LogCommand:
				_, err := open(log.Data)
				return err
			case raft.LogConfiguration:
				raft.DecodeConfiguration(log.Data) // It panics.
			case raft.LogNoop, raft.LogBarrier:
			case raft.LogAddPeerDeprecated, raft.LogRemovePeerDeprecated:
				return fmt.Errorf("its kind is %v", log.Type)
			default:
				return fmt.Errorf("its kind is %d", log.Type)
			}
			return nil
		}); err != nil {
			return damaged(filepath.Join(path, "*.wal"), fmt.Errorf("entry %d: %w", i, err))
		}
	}
	return nil
}

// guarded returns a panic of a library as an error, also one for a file that is shorter than its
// map in memory.
func guarded(do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("it makes no sense: %v", cause)
		}
	}()
	return do()
}

// damaged says that a file of the log cannot be used.
func damaged(name string, err error) error {
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("peer: %s: %w: let this user read and write it, and start again", name, err)
	}
	return unusable(fmt.Errorf("peer: %s: %w: the disk or a program has damaged it: move the directory away, and start again with an empty one: the others hand over all", name, err))
}
