package consensus

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"
	"go.uber.org/goleak"

	"github.com/millrace/millrace/internal/leaktest"
	"github.com/millrace/millrace/server/journal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient{M: m}) }

const (
	patience = 5 * time.Minute
	// heartbeat is that of clusters whose leaders are replaced often. A busy machine exceeds it now
	// and then, so their tests go on when a leader has lost its term.
	heartbeat = time.Second
)

var errCut = errors.New("the network is cut")

// cluster is three peers in this process, and places for more. Their addresses are names: dial
// knows where they are.
type cluster struct {
	t      *testing.T
	roots  []string
	config Config

	mu    sync.Mutex
	peers []*Peer        // nil: it does not run
	at    map[string]int // by address
	ports []string
	apart []bool // it cannot be reached, and reaches nobody
	conns map[net.Conn][2]int
	// hangs is the address that takes no connection, and hanging counts the attempts.
	hangs   string
	hanging int
}

var (
	names = []string{"a:1", "b:1", "c:1"}
	later = []string{"d:1", "e:1"} // may join
)

func newCluster(t *testing.T, config Config) *cluster {
	t.Helper()
	c := newPlaces(t, config)
	for i := range names {
		c.start(i)
	}
	return c
}

// newPlaces is newCluster without a peer that runs.
func newPlaces(t *testing.T, config Config) *cluster {
	t.Helper()
	config.Heartbeat = cmp.Or(config.Heartbeat, heartbeat)
	places := slices.Concat(names, later)
	n := len(places)
	c := &cluster{t: t, config: config, at: map[string]int{}, ports: make([]string, n), apart: make([]bool, n), peers: make([]*Peer, n), conns: map[net.Conn][2]int{}}
	for i, name := range places {
		c.at[name] = i
		c.roots = append(c.roots, filepath.Join(t.TempDir(), "peer"))
	}
	t.Cleanup(func() {
		for i := range c.peers {
			c.stop(i)
		}
	})
	return c
}

// name returns the address of a place.
func (c *cluster) name(i int) string { return slices.Concat(names, later)[i] }

// start starts a peer.
func (c *cluster) start(i int) {
	c.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	directory, err := journal.OpenDirectory(c.roots[i])
	if err != nil {
		c.t.Fatal(err)
	}
	config := c.config
	config.Directory, config.Own, config.Listener = directory, c.name(i), listener
	if config.Addresses == nil {
		config.Addresses = names
		if i >= len(names) {
			config.Addresses = slices.Concat(names, []string{c.name(i)})
		}
	}
	config.Advertise, config.Secret = "client-"+c.name(i), []byte("secret")
	config.Log = slog.New(slog.NewTextHandler(c.t.Output(), nil)).With("peer", c.name(i))
	config.dial = func(ctx context.Context, address string) (net.Conn, error) { return c.dial(ctx, i, address) }
	c.mu.Lock()
	c.ports[i] = listener.Addr().String()
	c.mu.Unlock()
	r, err := Open(config)
	if err != nil {
		c.t.Fatal(err)
	}
	c.peers[i] = r
}

// stop ends a peer without a word to the others, as a crash does: all that Raft has said is on
// the disk, and nothing else is used again.
func (c *cluster) stop(i int) {
	if r := c.peers[i]; r != nil {
		r.Close()
		_ = r.config.Directory.Close()
		c.peers[i] = nil
	}
}

func (c *cluster) dial(ctx context.Context, from int, address string) (net.Conn, error) {
	c.mu.Lock()
	to := c.at[address]
	port, apart := c.ports[to], c.apart[from] || c.apart[to]
	if c.hangs == address {
		defer c.mu.Unlock()
		c.hanging++
		c.mu.Unlock()
		<-ctx.Done()
		c.mu.Lock()
		c.hanging--
		return nil, ctx.Err()
	}
	c.mu.Unlock()
	if apart {
		return nil, errCut
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", port)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.apart[from] || c.apart[to] { // The cut came meanwhile.
		_ = conn.Close()
		return nil, errCut
	}
	c.conns[conn] = [2]int{from, to}
	return conn, nil
}

// cut cuts one peer off from the others, or ends that.
func (c *cluster) cut(i int, apart bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.apart[i] = apart
	for conn, ends := range c.conns { // order-free: all are closed
		if apart && (ends[0] == i || ends[1] == i) {
			_ = conn.Close()
			delete(c.conns, conn)
		}
	}
}

// lead returns the peer that leads, among those that run and are not cut off, and its term.
func (c *cluster) lead() (int, *Term) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	type led struct {
		i    int
		term *Term
	}
	found := make(chan led)
	var waiting sync.WaitGroup
	for i, r := range c.peers {
		if r == nil || c.apart[i] {
			continue
		}
		waiting.Go(func() {
			if term, err := r.Lead(ctx); err == nil {
				select {
				case found <- led{i, term}:
				case <-ctx.Done():
					term.Release()
				}
			}
		})
	}
	select {
	case l := <-found:
		cancel()
		waiting.Wait()
		return l.i, l.term
	case <-ctx.Done():
		c.t.Fatal("no peer leads")
		return 0, nil
	}
}

// leading calls do with the peer that leads and its term, until do has succeeded within a term: on
// a busy machine a leader may lose it. The term that is returned was not lost before do had ended.
func (c *cluster) leading(do func(i int, term *Term) error) (int, *Term) {
	c.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		i, term := c.lead()
		if isClosed(term.released) {
			term.end() // An earlier call had it.
			continue
		}
		done, watched := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(watched)
			select {
			case <-term.Lost():
				term.Release() // Its files answer.
			case <-done:
			}
		}()
		err := do(i, term)
		close(done)
		<-watched
		if lost := isClosed(term.Lost()); err == nil && !isClosed(term.released) {
			return i, term
		} else if err != nil && !lost {
			c.t.Fatal(err)
		}
		term.Release()
		if time.Now().After(deadline) {
			c.t.Fatalf("each leader loses its term: %v", err)
		}
	}
}

// put appends to a file, and makes that durable, at the peer that leads. A leader that has lost its
// term may have written a part, or all, of the text.
func (c *cluster) put(name, before, text string) (int, *Term) {
	c.t.Helper()
	return c.leading(func(_ int, term *Term) error {
		all, err := contents(term)
		if err != nil {
			return err
		}
		rest, ok := strings.CutPrefix(before+text, all[name])
		if !ok || len(all[name]) < len(before) {
			return fmt.Errorf("%s has %d bytes, and should have the %d before and perhaps more", name, len(all[name]), len(before))
		}
		if rest == "" {
			return nil
		}
		return write(term, name, rest)
	})
}

// contents returns the files of a Files.
func contents(files journal.Files) (map[string]string, error) {
	list, err := files.List()
	all := map[string]string{}
	for _, name := range list {
		data, err := files.Read(name)
		if err != nil {
			return nil, err
		}
		all[name] = string(data)
	}
	return all, err
}

// until waits until a condition holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it never happened that " + what)
		}
	}
}

// have waits until all peers that run have these files.
func (c *cluster) have(want map[string]string) {
	c.t.Helper()
	for i, r := range c.peers {
		if r != nil {
			until(c.t, fmt.Sprintf("peer %d has the files", i), func() bool {
				got, err := contents(r.state.current())
				return err == nil && maps.Equal(got, want)
			})
		}
	}
}

// write appends to a file, and makes that durable.
func write(files journal.Files, name, text string) error {
	file, err := files.Append(name)
	if err == nil {
		_, err = file.Write([]byte(text))
	}
	if err == nil {
		err = file.Sync()
	}
	return err
}

// TestAcknowledgedSurvivesTheLeader: the next leader has all that the last one has said to be
// durable, also if peers are started again one after the other.
func TestAcknowledgedSurvivesTheLeader(t *testing.T) {
	c := newCluster(t, Config{})
	want := map[string]string{}
	var last uint64
	for round := range 4 {
		c.leading(func(i int, term *Term) error {
			if term.writer == last {
				t.Fatal("two terms have one writer")
			}
			last = term.writer
			got, err := contents(term)
			if err != nil {
				return err
			}
			if !maps.Equal(got, want) {
				return fmt.Errorf("round %d: %v; want %v", round, got, want)
			}
			known := func() bool {
				for _, r := range c.peers[:len(names)] {
					if r.Leader() != "client-"+names[i] {
						return false
					}
				}
				return true
			}
			until(t, "all know the leader, or its term ends", func() bool { return known() || isClosed(term.Lost()) })
			return nil
		})
		name := fmt.Sprint("file", round%2)
		text := strings.Repeat("x", round*entryBytes) + "end"
		i, term := c.put(name, want[name], text)
		last = term.writer
		want[name] += text
		c.stop(i)
		term.Release()
		if _, next := c.lead(); next != nil {
			next.Release()
		}
		c.start(i)
		c.have(want)
	}
}

// TestCutOffLeaderAcknowledgesNothing: writes of a leader that cannot reach the others fail, and
// nobody has them later.
func TestCutOffLeaderAcknowledgesNothing(t *testing.T) {
	c := newCluster(t, Config{})
	i, old := c.put("file", "", "first")
	c.cut(i, true)
	wrote := make(chan error, 1)
	go func() { wrote <- write(old, "file", " of the old leader") }()
	_, next := c.put("file", "first", " second")
	defer next.Release()
	<-old.Lost()
	select {
	case err := <-wrote:
		t.Fatalf("the writer of the old leader was answered while calls were open: %v", err)
	default:
	}
	old.Release()
	if err := <-wrote; !errors.Is(err, journal.ErrTaken) {
		t.Fatalf("the old leader acknowledged: %v", err)
	}
	if _, err := old.List(); !errors.Is(err, journal.ErrTaken) {
		t.Fatalf("the old leader still reads: %v", err)
	}
	c.cut(i, false)
	c.have(map[string]string{"file": "first second"})
}

// TestNothingOutlivesAPeerThatFailed: Raft uses nothing of a peer any more that has failed and was
// closed.
func TestNothingOutlivesAPeerThatFailed(t *testing.T) {
	c := newCluster(t, Config{})
	_, term := c.lead()
	term.Release()
	c.mu.Lock()
	c.hangs = "d:1"
	c.mu.Unlock()
	if err := c.change(func(r *Peer) error { return r.AddPeer(t.Context(), "d:1") }); err != nil {
		t.Fatal(err)
	}
	hanging := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.hanging
	}
	until(t, "the leader calls the new peer", func() bool { return hanging() > 0 })
	for i, r := range c.peers[:len(names)] {
		r.state.mu.Lock()
		_ = r.state.fail(errors.New("the disk is full")) // All hear of it.
		r.state.mu.Unlock()
		<-r.Failed()
		c.stop(i)
	}
	if n := hanging(); n != 0 {
		t.Errorf("%d calls of peers that were closed are open", n)
	}
}

// TestLateEntriesAreRefused: an entry of a leader that was replaced meanwhile changes nothing, and
// neither does one that follows a missing one.
func TestLateEntriesAreRefused(t *testing.T) {
	s := newTestState(t, t.TempDir())
	grow := func(writer, number uint64, size int64) any {
		body := operation{kind: opAppend, name: "file", size: size, data: []byte("x")}.append(nil)
		return apply(s, entry{kindFiles, writer, number, body})
	}
	begin := func(writer uint64) {
		if err := apply(s, entry{kindBegin, writer, 0, appendText(appendText(nil, "id"), "address")}); err != nil {
			t.Fatal(err)
		}
	}
	begin(7)
	if err := grow(7, 1, 0); err != nil {
		t.Fatal(err)
	}
	if err := grow(7, 3, 1); err != errFenced { //nolint:errorlint // It is the value itself.
		t.Errorf("an entry that follows a missing one: %v", err)
	}
	begin(8)
	if err := grow(7, 2, 1); err != errFenced { //nolint:errorlint // It is the value itself.
		t.Errorf("an entry of the leader before: %v", err)
	}
	if err := grow(8, 1, 1); err != nil {
		t.Fatal(err)
	}
	if got, err := contents(s.current()); err != nil || got["file"] != "xx" {
		t.Errorf("%v, %v", got, err)
	}
}

// TestLostDirectoryIsReplaced: a peer that comes back without its directory gets all from the
// others, under another id, and then counts as before.
func TestLostDirectoryIsReplaced(t *testing.T) {
	c := newCluster(t, Config{})
	i, term := c.put("file", "", "first")
	lost := (i + 1) % 3
	c.stop(lost)
	if err := os.RemoveAll(c.roots[lost]); err != nil {
		t.Fatal(err)
	}
	c.start(lost)
	want := map[string]string{"file": "first"}
	c.have(want)
	until(t, "the peer is a member", c.peers[lost].votes)
	if id := c.peers[lost].identity.ID; !strings.HasPrefix(id, names[lost]+"#") {
		t.Errorf("its id is %q", id)
	}
	c.stop(i)
	term.Release()
	_, next := c.put("file", "first", " second") // Of two, one of which is the replaced one.
	defer next.Release()
	c.start(i)
	c.have(map[string]string{"file": "first second"})
}

// TestFilesAreAsOnADisk compares random operations with those on a plain directory. Leaders are
// stopped, and snapshots are taken, in between.
func TestFilesAreAsOnADisk(t *testing.T) {
	rounds, steps := 3, 150
	if testing.Short() {
		rounds, steps = 2, 80
	}
	seed := rand.Uint64()
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	// A leader that a busy machine holds up must not lose its term in the middle of a round.
	c := newCluster(t, Config{SnapshotBytes: 64 << 10, Heartbeat: 5 * time.Second})
	plain, err := journal.OpenDirectory(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = plain.Close() }()
	for range rounds {
		lost := false
		i, term := c.leading(func(_ int, term *Term) error {
			if lost { // The last leader has carried out what it had time for.
				if err := imitate(plain, term); err != nil {
					return err
				}
			}
			lost = true
			if err := compare(plain, term); err != nil {
				return err
			}
			open := map[string][2]journal.File{}
			for range steps {
				if err := step(random, plain, term, open); err != nil {
					return err
				}
			}
			if err := term.SyncNames(); err != nil {
				return err
			}
			return compare(plain, term)
		})
		c.stop(i)
		term.Release()
		_, next := c.lead()
		next.Release()
		c.start(i)
	}
	want, err := contents(plain)
	if err != nil {
		t.Fatal(err)
	}
	c.have(want)
}

// imitate makes the files of a plain directory those of a term.
func imitate(plain, term journal.Files) error {
	have, err := plain.List()
	if err != nil {
		return err
	}
	want, err := contents(term)
	if err != nil {
		return err
	}
	for _, name := range have {
		if err := plain.Remove(name); err != nil {
			return err
		}
	}
	for name, text := range want { // order-free: each is a file of its own
		if err := write(plain, name, text); err != nil {
			return err
		}
	}
	return nil
}

// step does one random thing with both.
func step(random *rand.Rand, plain, term journal.Files, open map[string][2]journal.File) error {
	name, other := fmt.Sprint("f", random.IntN(5)), fmt.Sprint("f", random.IntN(5))
	both := func(what string, do func(journal.Files) error) error {
		want, got := do(plain), do(term)
		if (want == nil) != (got == nil) || errors.Is(want, fs.ErrNotExist) != errors.Is(got, fs.ErrNotExist) {
			return errors.New(fmt.Sprint(what, ": ", got, "; on a disk: ", want))
		}
		return nil
	}
	files, isOpen := open[name]
	switch choice := random.IntN(20); {
	case choice < 2 && name != other:
		delete(open, name)
		delete(open, other)
		return both("rename", func(f journal.Files) error { return f.Rename(name, other) })
	case choice < 4:
		delete(open, name)
		return both("remove", func(f journal.Files) error { return f.Remove(name) })
	case choice < 5:
		return both("sync names", journal.Files.SyncNames)
	case choice < 6:
		return compare(plain, term)
	case !isOpen:
		for i, f := range []journal.Files{plain, term} {
			file, err := f.Append(name)
			if err != nil {
				return err
			}
			files[i] = file
		}
		open[name] = files
	case choice < 8:
		size, err := plain.Size(name)
		if err != nil {
			return err
		}
		to := random.Int64N(size + 1)
		for _, file := range files {
			if err := file.Truncate(to); err != nil {
				return err
			}
		}
	case choice < 10:
		for _, file := range files {
			if err := errors.Join(file.Sync(), file.Close()); err != nil {
				return err
			}
		}
		delete(open, name)
	default:
		data := bytes.Repeat([]byte{byte('a' + random.IntN(26))}, 1+random.IntN(8<<10))
		for _, file := range files {
			if n, err := file.Write(data); err != nil || n != len(data) {
				return errors.New(fmt.Sprint(n, " bytes of ", len(data), " were written: ", err))
			}
		}
	}
	return nil
}

func compare(plain, term journal.Files) error {
	want, err := contents(plain)
	if err != nil {
		return err
	}
	got, err := contents(term)
	if err != nil {
		return err
	}
	if !maps.Equal(got, want) {
		return fmt.Errorf("the files differ: %d and %d", len(got), len(want))
	}
	for name, text := range want { // order-free: all are compared
		if size, err := term.Size(name); err != nil || size != int64(len(text)) {
			return errors.New(fmt.Sprint(name, ": ", size, ", ", err))
		}
		if part, err := term.ReadPart(name, int64(len(text)/2), int64(len(text)-len(text)/2)); err != nil || string(part) != text[len(text)/2:] {
			return errors.New(fmt.Sprint(name, ": its end differs: ", err))
		}
	}
	return nil
}

// TestStopReachesAll: a leader that stops the cluster tells all peers before it ends. One that
// starts later does not take it for its own end.
func TestStopReachesAll(t *testing.T) {
	c := newCluster(t, Config{})
	i, term := c.lead()
	term.Release()
	late := (i + 1) % 3
	c.stop(late)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for told := false; !told; { // A peer of a busy machine may not answer in time: then it is away.
		i, term = c.leading(func(_ int, term *Term) error {
			begun := time.Now()
			if err := term.Stop(ctx); err != nil {
				return err
			}
			inTime := time.Since(begun) < askTime
			told = true
			for j, r := range c.peers[:len(names)] {
				if j == late || isClosed(r.Stopped()) {
					continue
				}
				if told = false; inTime {
					t.Errorf("peer %d does not know of it", j)
				}
			}
			return ctx.Err()
		})
		term.end()
		term.Release()
	}
	c.stop(i)
	c.start(i)
	c.start(late)
	_, next := c.put("file", "", "after")
	defer next.Release()
	c.have(map[string]string{"file": "after"})
	if isClosed(c.peers[late].Stopped()) || isClosed(c.peers[i].Stopped()) {
		t.Error("one that started later ends")
	}
}

// TestEndsWithEntriesInTheQueue: Raft drops what it has not handed over when it is shut down, and
// says nothing to those who wait for it.
func TestEndsWithEntriesInTheQueue(t *testing.T) {
	// A leader that a busy machine holds up seldom loses its term.
	c := newCluster(t, Config{Heartbeat: 5 * time.Second})
	for {
		i, term := c.lead()
		r := c.peers[i]
		r.state.mu.Lock() // Nothing is carried out.
		unlock := sync.OnceFunc(r.state.mu.Unlock)
		t.Cleanup(unlock)
		var last *commit
		for n := 0; n < 20 && !isClosed(term.lost); n++ {
			before := r.raft.AppliedIndex()
			term.mu.Lock()
			last = term.send(kindFiles, operation{kind: opMake, name: fmt.Sprint("file-", n)}.append(nil))
			term.mu.Unlock()
			until(t, "an entry is in the queue, or the term ends", func() bool { return r.raft.AppliedIndex() > before || isClosed(term.lost) })
		}
		if isClosed(term.lost) { // This cluster has lost its leader; the next one tries again.
			unlock()
			term.Release()
			continue
		}
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			c.stop(i)
		}()
		until(t, "the peer ends", func() bool { return r.closing.Err() != nil && isClosed(term.lost) })
		unlock()
		for what, done := range map[string]chan struct{}{"the peer": closed, "its last entry": last.done} {
			select {
			case <-done:
			case <-time.After(patience):
				t.Fatalf("%s never ends", what)
			}
		}
		return
	}
}

// TestABusyDiskHoldsNoAnswerUp: while a peer carries out an entry, which takes as long as its disk
// does, it names the leader, answers other peers, and looks at them. Close waits for that look.
func TestABusyDiskHoldsNoAnswerUp(t *testing.T) {
	c := newCluster(t, Config{Heartbeat: 5 * time.Second})
	i, term := c.lead()
	defer term.Release()
	r := c.peers[i]
	r.state.mu.Lock() // An entry is carried out.
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		r.Leader()
		r.consider(question{})
		r.Peers(t.Context())
	}()
	select {
	case <-answered:
	case <-time.After(patience):
		t.Error("nobody is answered")
	}
	r.state.mu.Unlock()
	<-answered
}

// TestMissingIdentityIsSaid: a log whose peer nobody knows is not used.
func TestMissingIdentityIsSaid(t *testing.T) {
	c := newCluster(t, Config{})
	i, term := c.lead()
	term.Release()
	lost := (i + 1) % 3
	c.stop(lost)
	if err := os.Remove(filepath.Join(c.roots[lost], IdentityFile)); err != nil {
		t.Fatal(err)
	}
	c.start(lost)
	r := c.peers[lost]
	until(t, "the peer fails", func() bool { return isClosed(r.Failed()) })
	if err := r.Cause(); !errors.As(err, new(DirectoryError)) || !strings.Contains(err.Error(), IdentityFile+" is missing") || !strings.Contains(err.Error(), "the others hand over all") {
		t.Error(err)
	}
}

// TestDirectoryOfAnEarlierVersionIsRefused: it is not taken for an empty one, and stays as it is.
func TestDirectoryOfAnEarlierVersionIsRefused(t *testing.T) {
	root := t.TempDir()
	kept := filepath.Join(root, filesName)
	if err := errors.Join(os.Mkdir(kept, 0o700), os.WriteFile(filepath.Join(root, olderFile), []byte("{}"), 0o600)); err != nil {
		t.Fatal(err)
	}
	directory, err := journal.OpenDirectory(root)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = directory.Close() }()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if r, err := Open(Config{Directory: directory, Addresses: names, Own: names[0], Listener: listener}); err == nil {
		r.Close()
		t.Error("a peer begins in it")
	} else if !errors.As(err, new(DirectoryError)) || !strings.Contains(err.Error(), olderFile) || !strings.Contains(err.Error(), "millrace peers bootstrap") {
		t.Error(err)
	}
	if err := Bootstrap(directory, names, names[0], nil, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), olderFile) {
		t.Errorf("as that of a scheduler alone: %v", err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
}

// TestPeerEndsWithItsDisk: a leader whose log cannot be written says so, and does not say that
// another scheduler has taken its journal.
func TestPeerEndsWithItsDisk(t *testing.T) {
	c := newCluster(t, Config{})
	i, term := c.put("file", "", "first")
	r := c.peers[i]
	if err := r.store.Close(); err != nil { // Nothing can be written any more.
		t.Fatal(err)
	}
	wrote := make(chan error, 1)
	go func() { wrote <- write(term, "file", " second") }()
	until(t, "the peer fails", func() bool { return isClosed(r.Failed()) })
	until(t, "the term ends", func() bool { return isClosed(term.Lost()) })
	term.Release()
	err := <-wrote
	if err == nil || errors.Is(err, journal.ErrTaken) || !strings.Contains(err.Error(), "mend the disk") {
		t.Errorf("the writer is told %v", err)
	}
	if err := r.Cause(); err == nil || !strings.Contains(err.Error(), "write the log in") {
		t.Errorf("the cause is %v", err)
	}
	c.stop(i)
	_, next := c.leading(func(_ int, next *Term) error {
		got, err := contents(next)
		if err == nil && !strings.HasPrefix(got["file"], "first") {
			err = fmt.Errorf("the next leader has %v", got)
		}
		return err
	})
	defer next.Release()
}

// TestFounderThatHasVotedIsAMember: a peer may have voted in the second term, and lost its
// directory since. It must not found the cluster again, and vote in that term once more.
func TestFounderThatHasVotedIsAMember(t *testing.T) {
	c := newCluster(t, Config{})
	i, term := c.lead()
	for j := range names {
		c.stop(j)
	}
	term.Release()
	// Before the first leader's entry, a disk has the list of peers, a term and perhaps a vote.
	root := filepath.Join(c.roots[i], raftName)
	for term, want := range map[uint64]string{1: phaseFounding, 2: phaseMember} { // order-free: each begins anew
		if err := os.RemoveAll(root); err != nil {
			t.Fatal(err)
		}
		foundAt(t, root, c.peersOf(), term)
		c.start(i)
		r := c.peers[i]
		until(t, "Raft has begun", func() bool { return r.started() != nil })
		if a := r.consider(question{}); a.Phase != want {
			t.Errorf("in term %d it says %+v, want %s", term, a, want)
		}
		c.stop(i)
	}
}

// peersOf returns the configuration of the first start.
func (c *cluster) peersOf() (all raft.Configuration) {
	for _, name := range names {
		all.Servers = append(all.Servers, raft.Server{ID: raft.ServerID(name), Address: raft.ServerAddress(name)})
	}
	return all
}

// foundAt makes the log of a founder in a term.
func foundAt(t *testing.T, root string, all raft.Configuration, term uint64) {
	t.Helper()
	if err := os.MkdirAll(root, 0o700); err != nil {
		t.Fatal(err)
	}
	var meta metadb.BoltMetaDB
	store, err := wal.Open(root, wal.WithMetaStore(&meta))
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(
		store.SetUint64([]byte("CurrentTerm"), term),
		store.StoreLog(&raft.Log{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(all)}),
		store.Close(), meta.Close(),
	)
	if err != nil {
		t.Fatal(err)
	}
}
