package consensus

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/millrace/millrace/server/journal"
)

const (
	// entryBytes is the size of collected operations from which they are sent as an entry, without
	// waiting for a sync: a sync then waits for little, and a heartbeat of Raft, too.
	entryBytes = 512 << 10
	// flightBytes bounds the entries that are on their way.
	flightBytes = 16 << 20
)

// Term is the time in which a peer leads. Its Files are those of the journal.
type Term struct {
	peer   *Peer
	writer uint64
	// lost is closed when it is over, and released when its owner answers nobody any more.
	lost, released chan struct{}
	over, release  sync.Once
	// elected is the term of Raft. confirmed is a time at which most peers still followed this one.
	elected   uint64
	confirmed atomic.Pointer[time.Time]
	// asking has room for the one question whether they do that has no answer yet.
	asking chan struct{}

	mu sync.Mutex // guards all below
	// pending are the operations that no entry has yet. sizes are the lengths of files that are
	// written.
	pending []byte
	sizes   map[string]int64
	number  uint64 // of the last entry
	// flight are the entries that are not known to be committed, in order.
	flight      []*commit
	flightBytes int
	err         error
}

// commit is an entry on its way.
type commit struct {
	done  chan struct{}
	err   error
	index uint64 // in the log
	bytes int
}

// Lost is closed when this peer leads no more.
func (t *Term) Lost() <-chan struct{} { return t.lost }

// Release says that nobody is answered any more. Until then the files of a lost term make their
// callers wait: clients should hear of the new leader, and not of an error of the journal.
func (t *Term) Release() { t.release.Do(func() { close(t.released) }) }

// end ends the term: no entry is sent after it.
func (t *Term) end() {
	t.over.Do(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		close(t.lost)
	})
}

// Leads returns nil if no other peer has led before the call. Most peers are asked unless they have
// followed lately: one that was stopped for longer than that learns here that another one leads.
// The clock is the monotonic one of this machine, which must not stand still with the process. An
// answer that takes longer than messageTime, for example since the disk stands still, counts as no.
// Calls that wait share a question, even one that took long.
func (t *Term) Leads(ctx context.Context) error {
	called := time.Now()
	if t.isFollowed() {
		return nil
	}
	waiting, cancel := context.WithTimeout(ctx, messageTime)
	defer cancel()
	select {
	case t.asking <- struct{}{}:
	case <-t.lost:
		return t.unknown(ctx)
	case <-waiting.Done():
		return t.unknown(ctx)
	}
	// A caller that gives up leaves its question: nobody asks another one until it is answered.
	answered := sync.OnceFunc(func() { <-t.asking })
	if t.isFollowed() || t.isFollowedSince(called) {
		answered()
		return nil
	}
	err := t.peer.propose(waiting, func() error {
		defer answered()
		begun := time.Now()
		err := t.ask()
		if err == nil && t.peer.raft.CurrentTerm() != t.elected {
			err = raft.ErrLeadershipLost
		}
		if err == nil {
			t.confirm(begun)
		}
		return err
	})
	if errors.Is(err, raft.ErrRaftShutdown) {
		answered() // Perhaps nothing was asked, and nothing is from now on.
	}
	if err == nil && !isClosed(t.lost) {
		return nil
	}
	return t.unknown(ctx)
}

// ask returns nil if most peers with a vote follow this one. Raft 1.8.0 takes the answers of those
// without a vote for votes in VerifyLeader. While there is one, most of the others must have an
// entry that changes nothing.
func (t *Term) ask() error {
	if t.peer.allVote() {
		if err := t.peer.raft.VerifyLeader().Error(); err != nil || t.peer.allVote() {
			return err
		}
	}
	return t.peer.raft.Barrier(0).Error()
}

// confirm notes a time at which most peers still followed this one.
func (t *Term) confirm(at time.Time) {
	for {
		before := t.confirmed.Load()
		if before != nil && !at.After(*before) || t.confirmed.CompareAndSwap(before, &at) {
			return
		}
	}
}

// unknown returns the error of a call for which it was not found out that this peer leads.
func (t *Term) unknown(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return t.peer.refusal()
}

// isFollowed reports whether most peers have followed this one so lately that they cannot have
// elected another one since. A leader that hands over cannot count on that.
func (t *Term) isFollowed() bool {
	at := t.confirmed.Load()
	return at != nil && time.Since(*at) < t.peer.leaseTime() && !isClosed(t.lost) && !t.peer.handing.Load()
}

// isFollowedSince reports whether most peers have followed this one at a time or later. It holds
// however long ago that is, and for a leader that hands over.
func (t *Term) isFollowedSince(called time.Time) bool {
	at := t.confirmed.Load()
	return at != nil && !at.Before(called) && !isClosed(t.lost)
}

// send proposes an entry. The caller holds the mutex.
func (t *Term) send(kind byte, body []byte) *commit {
	if isClosed(t.lost) {
		c := &commit{done: make(chan struct{}), err: raft.ErrLeadershipLost}
		close(c.done)
		t.flight = append(t.flight, c)
		return c
	}
	t.number++
	data := entry{kind: kind, writer: t.writer, number: t.number, body: body}.seal()
	c := &commit{done: make(chan struct{}), bytes: len(data)}
	begun := time.Now()
	future := t.peer.raft.Apply(data, 0)
	t.flight = append(t.flight, c)
	t.flightBytes += c.bytes
	t.peer.commits.Go(func() {
		defer close(c.done)
		if c.err = future.Error(); c.err == nil {
			c.index = future.Index()
			if c.err, _ = future.Response().(error); c.err == nil {
				t.confirm(begun) // Most peers have it since, and no other one has begun to lead.
			}
		}
	})
	return c
}

// begin commits the beginning of the term. All entries of earlier terms are applied then.
func (t *Term) begin() error {
	t.mu.Lock()
	body := appendText(appendText(nil, t.peer.identity.ID), t.peer.config.Advertise)
	t.number-- // The entry of files that follows is the first one.
	c := t.send(kindBegin, body)
	t.mu.Unlock()
	<-c.done
	return c.err
}

// Stop stops the processes of all peers that can be reached, and no later ones. It waits, for a
// while, until they know of it. Call it when the journal is closed.
func (t *Term) Stop(ctx context.Context) error {
	processes := []uint64{t.peer.state.process}
	answers, _ := t.peer.inquire(ctx, question{}) // One that cannot be reached does not hear of it.
	for _, a := range answers {                   // order-free: all are stopped
		processes = append(processes, a.Process)
	}
	body := binary.AppendUvarint(nil, uint64(len(processes)))
	for _, id := range processes {
		body = binary.AppendUvarint(body, id)
	}
	t.mu.Lock()
	c := t.send(kindStop, body)
	t.mu.Unlock()
	<-c.done
	if c.err == nil {
		t.peer.told(ctx, c.index)
	}
	return c.err
}

// add notes an operation, and sends what has collected if that is much.
func (t *Term) add(o operation) {
	t.pending = o.append(t.pending)
	if len(t.pending) >= entryBytes {
		t.sendPending()
	}
}

func (t *Term) sendPending() {
	if len(t.pending) > 0 {
		t.send(kindFiles, t.pending)
		t.pending = nil
	}
}

// change calls do, which notes operations, with the mutex held. It waits while too much is on its
// way.
func (t *Term) change(do func() error) error {
	t.mu.Lock()
	if t.err != nil {
		defer t.mu.Unlock()
		return t.err
	}
	err := do()
	var oldest *commit
	if t.flightBytes > flightBytes {
		oldest = t.flight[0]
	}
	t.mu.Unlock()
	if err != nil || oldest == nil {
		return err
	}
	return t.wait(oldest)
}

// sync waits until all operations so far are on most peers, and in the directory of this one.
func (t *Term) sync() error {
	t.mu.Lock()
	if t.err != nil {
		defer t.mu.Unlock()
		return t.err
	}
	t.sendPending()
	var last *commit
	if n := len(t.flight); n > 0 {
		last = t.flight[n-1]
	}
	t.mu.Unlock()
	if last == nil {
		return nil
	}
	return t.wait(last)
}

// wait waits for an entry, and so for all before it: without these it is refused. After an error
// the files are of no use.
func (t *Term) wait(c *commit) error {
	<-c.done
	if c.err != nil {
		t.end()
		<-t.released
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.err != nil && t.err == nil {
		if t.err = t.peer.state.cause(); t.err == nil {
			t.err = fmt.Errorf("%w: %w", journal.ErrTaken, c.err)
		}
	}
	for len(t.flight) > 0 {
		select {
		case <-t.flight[0].done:
			t.flightBytes -= t.flight[0].bytes
			t.flight = t.flight[1:]
			continue
		default:
		}
		break
	}
	return t.err
}

// synced returns the directory, with all operations so far in it.
func (t *Term) synced() (*journal.Directory, error) {
	if err := t.sync(); err != nil {
		return nil, err
	}
	return t.peer.state.current(), nil
}

// List is part of journal.Files.
func (t *Term) List() ([]string, error) {
	d, err := t.synced()
	if err != nil {
		return nil, err
	}
	return d.List()
}

// Read is part of journal.Files.
func (t *Term) Read(name string) ([]byte, error) {
	d, err := t.synced()
	if err != nil {
		return nil, err
	}
	return d.Read(name)
}

// ReadPart is part of journal.Files.
func (t *Term) ReadPart(name string, offset, size int64) ([]byte, error) {
	d, err := t.synced()
	if err != nil {
		return nil, err
	}
	return d.ReadPart(name, offset, size)
}

// Size is part of journal.Files.
func (t *Term) Size(name string) (int64, error) {
	d, err := t.synced()
	if err != nil {
		return 0, err
	}
	return d.Size(name)
}

// Append is part of journal.Files.
func (t *Term) Append(name string) (journal.File, error) {
	size, err := t.Size(name)
	if errors.Is(err, fs.ErrNotExist) {
		size, err = 0, nil
	}
	if err != nil {
		return nil, err
	}
	f := &file{term: t, name: name}
	return f, t.change(func() error {
		if _, open := t.sizes[name]; !open {
			t.sizes[name] = size
			t.add(operation{kind: opMake, name: name})
		}
		return nil
	})
}

// Rename is part of journal.Files.
func (t *Term) Rename(from, to string) error {
	if _, err := t.Size(from); err != nil {
		return err
	}
	return t.change(func() error {
		delete(t.sizes, from)
		delete(t.sizes, to)
		t.add(operation{kind: opRename, name: from, to: to})
		return nil
	})
}

// Remove is part of journal.Files.
func (t *Term) Remove(name string) error {
	if _, err := t.Size(name); err != nil {
		return err
	}
	return t.change(func() error {
		delete(t.sizes, name)
		t.add(operation{kind: opRemove, name: name})
		return nil
	})
}

// SyncNames is part of journal.Files.
func (t *Term) SyncNames() error { return t.sync() }

// Path is the directory of the files, for errors.
func (t *Term) Path() string { return t.peer.state.current().Path() }

// file is one that the journal writes. It is of no use after the file has another name.
type file struct {
	term *Term
	name string
}

// change calls do with the length of the file, and keeps the length that it returns.
func (f *file) change(do func(size int64) int64) error {
	return f.term.change(func() error {
		size, ok := f.term.sizes[f.name]
		if !ok {
			return fmt.Errorf("peer: %s: it was renamed or removed", f.name)
		}
		f.term.sizes[f.name] = do(size)
		return nil
	})
}

// Write is part of journal.File.
func (f *file) Write(data []byte) (int, error) {
	for written := 0; written < len(data); {
		part := data[written:min(len(data), written+entryBytes)]
		if err := f.change(func(size int64) int64 {
			f.term.add(operation{kind: opAppend, name: f.name, size: size, data: part})
			return size + int64(len(part))
		}); err != nil {
			return written, err
		}
		written += len(part)
	}
	return len(data), nil
}

// Sync is part of journal.File.
func (f *file) Sync() error { return f.term.sync() }

// Truncate is part of journal.File.
func (f *file) Truncate(to int64) error {
	longer := false
	err := f.change(func(size int64) int64 {
		if longer = to > size || to < 0; longer {
			return size
		}
		if to != size {
			f.term.add(operation{kind: opTruncate, name: f.name, size: to})
		}
		return to
	})
	if longer {
		return fmt.Errorf("peer: %s cannot be cut to %d bytes: it is shorter", f.name, to)
	}
	return err
}

// Close is part of journal.File. Operations that nobody has synced go with the next sync.
func (f *file) Close() error { return nil }
