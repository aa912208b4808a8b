// Package consensus is an Adapter: it keeps the journal of the scheduler on several machines, by
// the Raft library of HashiCorp. A peer is one of the schedulers that share the journal.
//
// The operations on the files of the journal are entries of the log of Raft, one for each sync. An
// entry is committed when most peers have it on their disks. Then each of them carries it out in a
// directory of its own. Only the peer that leads runs the scheduler, with a Term as its files. ADR
// 31 has the reasons.
package consensus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"

	"github.com/millrace/millrace/server/journal"
	"github.com/millrace/millrace/server/schedapi"
)

const (
	// DefaultHeartbeat is the silence of the leader after which another peer wants to lead.
	DefaultHeartbeat = 500 * time.Millisecond
	// lease is the time after which a leader that does not hear from most peers gives up, which is
	// before that. It changes with Config.Heartbeat.
	lease = 400 * time.Millisecond
	// messageTime bounds a message between peers.
	messageTime = 5 * time.Second
	// snapshotBytes is the size of the log of Raft from which its snapshot takes its place, if the
	// files are not larger.
	snapshotBytes = 64 << 20
	// trailing is the number of entries that are kept behind a snapshot, so that a peer that was
	// away for a moment does not need all of the files.
	trailing = 512
	// appended is the number of entries that go with one message.
	appended = 16
	// inFlight is the number of messages with entries that are on their way to a peer. With more
	// than one, a sender of Raft 1.8.0 waits for itself for ever if the peer refuses one of them.
	inFlight = 1
	// retryTime is the time between two attempts at something.
	retryTime = 100 * time.Millisecond

	// IdentityFile is the file, in the directory of a peer, that says which one it is.
	IdentityFile = "peer.json"
	// olderFile was that of versions whose log and snapshots this one cannot read.
	olderFile = "replica.json"
	raftName  = "raft"
)

// Config sets up a peer.
type Config struct {
	// Directory has all that the peer keeps.
	Directory *journal.Directory
	// Addresses are those at which peers reach each other, and Own is that of this one. At the
	// first start of a cluster they are those of all peers. Later the log has these, and the
	// addresses say only where a peer without a directory asks.
	Addresses []string
	Own       string
	// Listener is where the others reach this one. Open and Close close it.
	Listener net.Listener
	// Advertise is the address at which clients reach the scheduler of this peer.
	Advertise string
	// Secret is what all peers know and nobody else.
	Secret []byte
	Log    *slog.Logger
	// Heartbeat is the silence of a leader after which another one is elected, the same for all
	// peers; 0: DefaultHeartbeat.
	Heartbeat time.Duration
	// Version is that of the program.
	Version string
	// SnapshotBytes is the least size of the log from which a snapshot takes its place. 0: 64 MiB.
	SnapshotBytes int64

	// changeTime bounds a change of the list of peers; 0: the constant of this name.
	changeTime time.Duration
	// dial connects to another peer; nil: by TCP. Tests break connections.
	dial func(ctx context.Context, address string) (net.Conn, error)
}

// identity is the content of the identity file.
type identity struct {
	// ID is the name of the peer in Raft: its address, and after a mark a random number if it has
	// come to a cluster that was there. A peer that lost its directory comes back with another
	// one: nobody may count on what the old one had promised.
	ID string `json:"id"`
	// Cluster is a name that all peers have, and no other cluster.
	Cluster string `json:"cluster"`
}

// Peer is one of the peers.
type Peer struct {
	config    Config
	log       *slog.Logger
	identity  identity // set once, before Raft begins
	opened    time.Time
	founds    bool // it began with the list, in this process; set before transport
	state     *state
	layer     *layer
	transport *transport
	store     *wal.WAL
	meta      metadb.BoltMetaDB // of store, whose Close leaves it open
	commits   sync.WaitGroup
	workers   sync.WaitGroup
	// handing: this peer has tried to hand over the lead since it was elected.
	handing atomic.Bool
	// closing ends with the call of Close.
	closing context.Context //nolint:containedctx // It is the life of the peer, and Open does not wait for its end.
	close   context.CancelFunc

	mu    sync.Mutex // guards all below, and identity
	raft  *raft.Raft // nil: it has not begun
	begun time.Time  // of raft
	// end has Raft end. It is Shutdown, of which only the first call returns a future that waits.
	end   func() raft.Future
	phase string
	// term is the current one; nil: another peer leads. changed is closed when that changes.
	term    *Term
	changed chan struct{}
	// seen are the peers as the leader saw them last; nil: another one leads. vacant are the
	// addresses of peers whose old id was removed, so that they may come back under another one.
	seen   []schedapi.Peer
	vacant map[string]bool
}

// List returns the addresses of peers in the form in which they are compared.
func List(addresses []string) string {
	sorted := slices.Clone(addresses)
	slices.Sort(sorted)
	return strings.Join(sorted, ",")
}

// Open begins a peer, and waits for no other one. The first start of a cluster needs all
// peers: until all have begun, none leads.
func Open(config Config) (*Peer, error) {
	if config.Heartbeat == 0 {
		config.Heartbeat = DefaultHeartbeat
	}
	if config.SnapshotBytes == 0 {
		config.SnapshotBytes = snapshotBytes
	}
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	r := &Peer{config: config, log: config.Log, opened: time.Now(), changed: make(chan struct{}), phase: phaseEmpty, vacant: map[string]bool{}}
	err := r.identify()
	if err == nil {
		r.state, err = newState(config.Directory.Path(), config.SnapshotBytes, config.Log)
	}
	if err != nil {
		return nil, errors.Join(err, config.Listener.Close())
	}
	r.closing, r.close = context.WithCancel(context.Background())
	if config.dial == nil {
		config.dial = func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
	}
	r.layer = newLayer(config, r.self, r.answer)
	r.workers.Go(func() {
		if err := r.begin(r.closing); r.closing.Err() == nil {
			r.state.mu.Lock()
			defer r.state.mu.Unlock()
			_ = r.state.fail(err) // The user of the peer hears of it.
		}
	})
	return r, nil
}

// identify reads which peer the directory is of. That of a scheduler alone is refused.
func (r *Peer) identify() error {
	d := r.config.Directory
	text, err := d.Read(IdentityFile)
	if errors.Is(err, fs.ErrNotExist) {
		if err := RefuseOlder(d); err != nil {
			return err
		}
		if begun, err := journal.Identify(d); err != nil {
			return err
		} else if begun != nil {
			return unusable(fmt.Errorf("peer: %s has the journal of a scheduler alone: \"millrace peers bootstrap\" makes it that of the first of several; or choose another directory", d.Path()))
		}
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, &r.identity)
	}
	if err != nil {
		return unusable(fmt.Errorf("peer: read %s: %w: move the directory away, and start again: the others hand over all", filepath.Join(d.Path(), IdentityFile), err))
	}
	return nil
}

// RefuseOlder refuses the directory of a peer of an earlier version. Without that, it would pass
// for an empty one.
func RefuseOlder(d *journal.Directory) error {
	if _, err := d.Size(olderFile); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return unusable(fmt.Errorf("peer: an earlier version of the program wrote %s, as %s in it says: stop that version, copy \"files\" out of the directory of the scheduler that led last, "+
		"call \"millrace peers bootstrap\" with the copy, and start the others with empty directories", d.Path(), olderFile))
}

// idMark is between the address and the number in the id of a peer.
const idMark = "#"

// self returns which peer this is; empty: it is in no cluster yet.
func (r *Peer) self() identity {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.identity
}

// keepIdentity writes the identity file.
func (r *Peer) keepIdentity(kept identity) error {
	r.mu.Lock()
	r.identity = kept
	r.mu.Unlock()
	return putIdentity(r.config.Directory, kept)
}

func putIdentity(d *journal.Directory, kept identity) error {
	text, err := json.Marshal(kept)
	if err != nil {
		return err
	}
	return journal.PutFile(d, IdentityFile, append(text, '\n'))
}

// setPhase says how this peer begins.
func (r *Peer) setPhase(phase string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phase = phase
}

// begin begins Raft, and stays until the end. It always returns an error.
func (r *Peer) begin(ctx context.Context) error {
	path := filepath.Join(r.config.Directory.Path(), raftName)
	logger := newLogger(r.log)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("peer: %w", err)
	}
	store, err := openLog(path, &r.meta, logger)
	if err != nil {
		return err
	}
	r.store = store
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(path, 1, logger)
	if err != nil {
		return fmt.Errorf("peer: %w", err)
	}
	if err := checkLog(path, r.store, snapshots); err != nil {
		return err
	}
	kept := &disk{r.store, path, r.state}
	existing, err := raft.HasExistingState(kept, kept, snapshots)
	if err != nil {
		return unusable(fmt.Errorf("peer: read the log in %s: %w: move the directory away, and start again: the others hand over all", path, err))
	}
	if existing && r.identity.ID == "" {
		return unusable(fmt.Errorf("peer: %s is missing, and a log is in %s: bring the file back from a copy; or move the directory away, and start again: the others hand over all",
			filepath.Join(r.config.Directory.Path(), IdentityFile), path))
	}
	found := false
	if existing {
		r.setPhase(phaseMember)
	} else if found, err = r.first(ctx); err != nil {
		return err
	} else if found {
		r.setPhase(phaseFounding)
	}
	r.founds = found
	r.transport = newTransport(raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{Stream: r.layer, ServerAddressProvider: byID{}, MaxPool: 3, MaxRPCsInFlight: inFlight, Timeout: messageTime, Logger: logger}), r)
	config := raft.DefaultConfig()
	config.LocalID = raft.ServerID(r.identity.ID)
	config.HeartbeatTimeout, config.ElectionTimeout = r.config.Heartbeat, r.config.Heartbeat
	config.LeaderLeaseTimeout = r.leaseTime()
	config.CommitTimeout = min(config.CommitTimeout, r.config.Heartbeat/10)
	config.MaxAppendEntries, config.TrailingLogs = appended, trailing
	config.SnapshotThreshold = math.MaxUint64 // They are taken by size: see snapshots.
	config.Logger, config.NoLegacyTelemetry = logger, true
	if found {
		var all raft.Configuration
		for _, address := range r.config.Addresses {
			all.Servers = append(all.Servers, raft.Server{ID: raft.ServerID(address), Address: raft.ServerAddress(address)})
		}
		if err := raft.BootstrapCluster(config, kept, kept, snapshots, r.transport, all); err != nil {
			return fmt.Errorf("peer: begin the log in %s: %w", path, err)
		}
	}
	started, err := raft.NewRaft(config, r.state, kept, kept, snapshots, r.transport)
	if err != nil {
		return unusable(fmt.Errorf("peer: begin with the log in %s: %w: mend the disk, or move the directory away, and start again: the others hand over all", path, errors.Join(err, r.state.cause())))
	}
	r.mu.Lock()
	r.raft, r.begun, r.end = started, time.Now(), sync.OnceValue(started.Shutdown)
	r.mu.Unlock()
	r.workers.Go(r.watch)
	r.workers.Go(r.snapshots)
	if err := r.join(ctx); err != nil {
		return err
	}
	return r.attend(ctx)
}

// leaseTime is the time after which a leader that does not hear from most peers gives up.
func (r *Peer) leaseTime() time.Duration { return r.config.Heartbeat * lease / DefaultHeartbeat }

// watch follows whether this peer leads.
func (r *Peer) watch() {
	for {
		select {
		case leads := <-r.raft.LeaderCh():
			r.mu.Lock()
			r.turn(leads)
			r.mu.Unlock()
		case <-r.state.failed:
			// Others must lead, and nobody may count on this one.
			r.mu.Lock()
			r.turn(false)
			r.mu.Unlock()
			r.commits.Wait() // As in Close.
			_ = r.end()      // Close waits for it.
			return
		case <-r.closing.Done():
			return
		}
	}
}

// turn ends the current term, and begins one. The caller holds the mutex.
func (r *Peer) turn(leads bool) {
	before := r.term
	if before != nil {
		before.end()
		r.term = nil
	}
	if leads {
		elected := r.raft.CurrentTerm()
		if before == nil || before.elected != elected {
			r.handing.Store(false)
		}
		r.term = &Term{
			peer: r, writer: rand.Uint64() | 1, lost: make(chan struct{}), released: make(chan struct{}), sizes: map[string]int64{},
			elected: elected, asking: make(chan struct{}, 1),
		}
	}
	close(r.changed)
	r.changed = make(chan struct{})
}

// snapshots takes snapshots of Raft when its log is large.
func (r *Peer) snapshots() {
	for {
		select {
		case <-r.state.due:
		case <-r.closing.Done():
			return
		}
		if err := r.raft.Snapshot().Error(); err != nil && !errors.Is(err, raft.ErrRaftShutdown) && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
			r.log.Warn("the log of the peer cannot be shortened: it is tried again later", "error", err)
		}
	}
}

// Lead waits until this peer leads, and all that was committed before is in its directory. It
// ends with an error if the context ends, or if the peer cannot go on.
func (r *Peer) Lead(ctx context.Context) (*Term, error) {
	for {
		r.mu.Lock()
		if t := r.term; t != nil && isClosed(t.lost) && r.raft.State() == raft.Leader {
			r.turn(true) // An entry failed, and yet no other one leads.
		}
		term, changed := r.term, r.changed
		r.mu.Unlock()
		var again <-chan time.Time
		if term != nil && !isClosed(term.lost) {
			err := term.begin()
			if err == nil {
				return term, nil
			}
			r.log.Info("this peer was elected, and cannot lead", "error", err)
			term.end()
			term.Release()
		}
		if term != nil {
			again = time.After(retryTime)
		}
		select {
		case <-changed:
		case <-again:
		case <-r.state.failed:
			return nil, r.state.cause()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Stopped is closed when a leader has stopped all schedulers.
func (r *Peer) Stopped() <-chan struct{} { return r.state.stopped }

// Failed is closed when this peer cannot go on; Cause says why.
func (r *Peer) Failed() <-chan struct{} { return r.state.failed }

// Cause returns why this peer cannot go on.
func (r *Peer) Cause() error { return r.state.cause() }

// Leader returns the address at which clients reach the leader; empty: none is known.
func (r *Peer) Leader() string {
	started := r.started()
	if started == nil {
		return ""
	}
	_, id := started.LeaderWithID()
	if l := r.state.leader.Load(); l != nil && l.id == string(id) {
		return l.address
	}
	return ""
}

// HandOver has another peer lead, if this one does and another one can.
func (r *Peer) HandOver() {
	if started := r.started(); started != nil && started.State() == raft.Leader {
		r.handing.Store(true)
		_ = started.LeadershipTransfer().Error() // Without it, the others notice the silence.
	}
}

// started returns Raft; nil: it has not begun.
func (r *Peer) started() *raft.Raft {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.raft
}

// Close ends the peer.
func (r *Peer) Close() {
	r.close()
	r.workers.Wait()
	r.mu.Lock()
	started, term := r.raft, r.term
	r.mu.Unlock()
	if term != nil {
		term.end()
		term.Release()
	}
	// Raft drops the entries that it has not carried out when it is shut down, and tells nobody.
	r.commits.Wait()
	if started != nil {
		_ = r.end().Error() // It never fails.
	}
	if r.transport != nil {
		r.transport.end()
	}
	_ = r.layer.Close() // Its listener is closed.
	if r.store != nil {
		_ = r.store.Close() // All of it is synced.
	}
	_ = r.meta.Close() // Likewise.
	r.state.close()
}
