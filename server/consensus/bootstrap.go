package consensus

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"

	"github.com/millrace/millrace/server/journal"
)

const (
	// aloneName is the directory, within that of a peer, that gets the journal of a scheduler alone
	// when it was taken over.
	aloneName = "alone"
	// takenIndex is the place in the log of what was taken over. The list of peers is before it.
	takenIndex = 2
)

// currentTerm is the key under which Raft keeps its term.
var currentTerm = []byte("CurrentTerm")

// Bootstrap makes the directory of a scheduler alone that of the first of several. It leads alone
// until the others, which begin with empty directories, have all that it has. kept are the names of
// files that are none of the journal. An attempt that was interrupted is made again.
func Bootstrap(d *journal.Directory, addresses []string, own string, kept []string, log *slog.Logger) error {
	if _, err := d.Size(IdentityFile); err == nil {
		return fmt.Errorf("peer: %s belongs to one of several schedulers already", d.Path())
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := RefuseOlder(d); err != nil {
		return err
	}
	if begun, err := journal.Identify(d); err != nil {
		return err
	} else if begun == nil {
		return fmt.Errorf("peer: %s has no journal: without one, start all schedulers with empty directories", d.Path())
	}
	path := filepath.Join(d.Path(), raftName)
	part := path + ".part"
	for _, left := range []string{path, part} { // Without an identity they are nobody's.
		if err := os.RemoveAll(left); err != nil {
			return err
		}
	}
	names, err := filesOf(d, kept)
	if err != nil {
		return err
	}
	all := raft.Configuration{Servers: []raft.Server{{ID: raft.ServerID(own), Address: raft.ServerAddress(own)}}}
	for _, address := range addresses {
		if address != own {
			all.Servers = append(all.Servers, raft.Server{ID: raft.ServerID(address), Address: raft.ServerAddress(address), Suffrage: raft.Nonvoter})
		}
	}
	if err := takeOver(d, names, part, all, log); err != nil {
		return fmt.Errorf("peer: take over the journal in %s: %w", d.Path(), err)
	}
	// From the identity on, the directory is that of a peer.
	if err := os.Rename(part, path); err != nil {
		return err
	}
	if err := putIdentity(d, identity{ID: own, Cluster: rand.Text()}); err != nil {
		return err
	}
	return putAside(d, names)
}

// filesOf returns the names of the files of a journal.
func filesOf(d *journal.Directory, kept []string) (names []string, err error) {
	all, err := d.List()
	if err != nil {
		return nil, err
	}
	for _, name := range all {
		info, err := os.Lstat(filepath.Join(d.Path(), name))
		if err != nil {
			return nil, err
		}
		if info.Mode().IsRegular() && !slices.Contains(kept, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// takeOver writes a log whose first snapshot has the files.
func takeOver(d *journal.Directory, names []string, path string, all raft.Configuration, log *slog.Logger) (err error) {
	logger := newLogger(log)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	var meta metadb.BoltMetaDB
	store, err := wal.Open(path, wal.WithLogger(logger), wal.WithMetaStore(&meta))
	if err != nil {
		return err
	}
	err = store.SetUint64(currentTerm, 1)
	if err = errors.Join(err, store.Close(), meta.Close()); err != nil {
		return err
	}
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(path, 1, logger)
	if err != nil {
		return err
	}
	taken, err := new(state).take(d.Path(), names)
	if err != nil {
		return err
	}
	defer taken.Release()
	_, transport := raft.NewInmemTransport("")
	defer func() { _ = transport.Close() }() // Nobody has called it.
	sink, err := snapshots.Create(1, takenIndex, 1, all, 1, transport)
	if err != nil {
		return err
	}
	return taken.Persist(sink)
}

// putAside moves the files of the journal away. A peer does not read them.
func putAside(d *journal.Directory, names []string) error {
	if err := os.MkdirAll(filepath.Join(d.Path(), aloneName), 0o700); err != nil {
		return err
	}
	for _, name := range names {
		if err := d.Rename(name, filepath.Join(aloneName, name)); err != nil {
			return err
		}
	}
	return d.SyncNames()
}
