package consensus

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/metadb"
)

// content is a file of the log of Raft, without the zeros at its end.
type content struct {
	data []byte
	size int64
}

// contentsOf returns all files below a directory, by name.
func contentsOf(t *testing.T, root string) map[string]content {
	t.Helper()
	all := map[string]content{}
	if err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		name, _ := filepath.Rel(root, path)
		all[name] = content{bytes.Clone(bytes.TrimRight(data, "\x00")), int64(len(data))}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// makeAgain writes files into a directory that has nothing else then.
func makeAgain(t *testing.T, root string, all map[string]content) {
	t.Helper()
	err := os.RemoveAll(root)
	for name, c := range all { // order-free: each is a file of its own
		path := filepath.Join(root, name)
		err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, c.data, 0o600), os.Truncate(path, c.size))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestADamagedDirectoryIsSaid: bytes of each file of the log are other ones, or missing. A start
// never panics: it is as if nothing had happened, or an error that names the file and the remedy.
func TestADamagedDirectoryIsSaid(t *testing.T) {
	c := newCluster(t, Config{Heartbeat: 5 * time.Second})
	_, term := c.leading(func(_ int, term *Term) error {
		for i := range 3 {
			if err := write(term, "file", strings.Repeat("text", 100)); err != nil {
				return err
			}
			if i == 1 {
				until(t, "a snapshot is taken", func() bool {
					err := term.peer.raft.Snapshot().Error()
					return err == nil || errors.Is(err, raft.ErrNothingNewToSnapshot)
				})
			}
		}
		return nil
	})
	root := filepath.Join(term.peer.config.Directory.Path(), raftName)
	for i := range names {
		c.stop(i)
	}
	term.Release()
	all := contentsOf(t, root)
	if len(all) != 4 {
		t.Fatalf("the log has %d files", len(all))
	}
	// begins begins Raft with the files as they are.
	begins := func() (err error) {
		var meta metadb.BoltMetaDB
		logger := newLogger(slog.New(slog.DiscardHandler))
		store, err := openLog(root, &meta, logger)
		defer func() { _ = meta.Close() }()
		if err != nil {
			return err
		}
		defer func() { _ = store.Close() }()
		snapshots, err := raft.NewFileSnapshotStoreWithLogger(root, 1, logger)
		if err != nil {
			return err
		}
		if err := checkLog(root, store, snapshots); err != nil {
			return err
		}
		config := raft.DefaultConfig()
		config.LocalID, config.Logger = raft.ServerID(names[0]), logger
		_, transport := raft.NewInmemTransport("")
		s := newTestState(t, filepath.Join(t.TempDir(), "state"))
		started, err := raft.NewRaft(config, s, store, store, snapshots, transport)
		if err != nil {
			return damaged(root, err)
		}
		return errors.Join(started.Shutdown().Error(), transport.Close())
	}
	starts, panics := 0, 0
	try := func(what, name string, changed content) {
		t.Helper()
		files := map[string]content{}
		for other, c := range all { // order-free: a copy
			files[other] = c
		}
		files[name] = changed
		makeAgain(t, root, files)
		switch err := begins(); {
		case err == nil:
			starts++
		case !errors.As(err, new(DirectoryError)) || !strings.Contains(err.Error(), root) || !strings.Contains(err.Error(), "start again with an empty one"):
			t.Errorf("%s of %s: %v", what, name, err)
		case strings.Contains(err.Error(), "it makes no sense"):
			panics++
		}
	}
	for name, c := range all { // order-free: each is tried
		before := [2]int{starts, panics}
		const places = 48
		for n := range places {
			at := n * len(c.data) / places
			for _, flip := range []byte{0x01, 0x80, 0xff} {
				data := bytes.Clone(c.data)
				data[at] ^= flip
				try(fmt.Sprintf("byte %d, changed by %#x,", at, flip), name, content{data, c.size})
			}
		}
		for _, size := range []int{0, 1, len(c.data) / 2, len(c.data) - 1} {
			try(fmt.Sprintf("the first %d bytes", size), name, content{c.data[:size], int64(size)})
		}
		t.Logf("%s (%d bytes): of %d changes, %d starts, %d panics of a library", name, len(c.data), 3*places+4, starts-before[0], panics-before[1])
	}
	makeAgain(t, root, all)
	if err := begins(); err != nil {
		t.Errorf("without damage: %v", err)
	}
}
