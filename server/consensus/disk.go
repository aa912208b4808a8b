package consensus

import (
	"fmt"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
)

// disk is the log of Raft. A peer whose log cannot be written ends: Raft itself would tell those
// that wait for an entry that it leads no more, and would want to lead again.
type disk struct {
	*wal.WAL
	path  string
	state *state
}

// StoreLog is part of raft.LogStore.
func (d *disk) StoreLog(log *raft.Log) error { return d.noted(d.WAL.StoreLog(log)) }

// StoreLogs is part of raft.LogStore.
func (d *disk) StoreLogs(logs []*raft.Log) error { return d.noted(d.WAL.StoreLogs(logs)) }

// DeleteRange is part of raft.LogStore.
func (d *disk) DeleteRange(least, most uint64) error { return d.noted(d.WAL.DeleteRange(least, most)) }

// Set is part of raft.StableStore.
func (d *disk) Set(key, value []byte) error { return d.noted(d.WAL.Set(key, value)) }

// SetUint64 is part of raft.StableStore.
func (d *disk) SetUint64(key []byte, value uint64) error { return d.noted(d.WAL.SetUint64(key, value)) }

// noted ends the use of the peer after an error.
func (d *disk) noted(err error) error {
	if err == nil {
		return nil
	}
	d.state.mu.Lock()
	defer d.state.mu.Unlock()
	return d.state.fail(fmt.Errorf("peer: write the log in %s: %w: mend the disk, or make room on it, and start again", d.path, err))
}
