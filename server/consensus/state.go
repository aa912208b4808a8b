package consensus

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/millrace/millrace/server/journal"
)

const (
	// filesName is the directory of the journal within that of the peer. oldName and newName are
	// those between which a snapshot from another peer is put in its place.
	filesName = "files"
	oldName   = "files.old"
	newName   = "files.new"

	// magic begins snapshots and hellos.
	magic = "MILLPEER"
	// snapshotFormat is the number of the format of snapshots.
	snapshotFormat = 1
	copyBuffer     = 256 << 10
	// mostHead bounds the head of a snapshot, of which a few bytes name each file: a damaged length
	// must not ask for much memory.
	mostHead = 64 << 20
)

// errFenced is the answer to an entry of a leader that was replaced, or of one whose entry before
// is missing.
var errFenced = errors.New("peer: another leader has begun since")

// state is the machine of Raft: a directory of files. The log and the snapshots of Raft are what is
// durable: each start of the process makes the directory anew from these. So no crash within an
// operation can be seen later, and nothing here is synced.
type state struct {
	root string
	log  *slog.Logger
	// process is a random id of this process.
	process uint64
	// stopped is closed when a leader has stopped all schedulers, and failed when this peer
	// cannot go on.
	stopped, failed chan struct{}
	// due is signalled when a snapshot is due, which is not before snapshotBytes were applied.
	snapshotBytes int64
	due           chan struct{}
	// leader is the peer that began to lead last; nil: none has ever begun. Apply and Restore set
	// it with the mutex, and all read it without: refusals and answers to other peers must not wait
	// for the disk.
	leader atomic.Pointer[led]

	mu sync.RWMutex // guards all below
	// grown is the size of the entries that were applied since the last snapshot began, and content
	// that of the files at that time. A snapshot copies all of them, so it is due when the entries
	// are as large.
	grown, content int64
	files          *journal.Directory
	broken         error
	writer         uint64 // the current one; 0: none has ever begun
	number         uint64 // of its last entry
}

// led is a peer that leads, with the address at which clients reach it.
type led struct{ id, address string }

func newState(root string, snapshotBytes int64, log *slog.Logger) (*state, error) {
	s := &state{
		root: root, log: log, process: rand.Uint64(), snapshotBytes: snapshotBytes,
		stopped: make(chan struct{}), failed: make(chan struct{}), due: make(chan struct{}, 1),
	}
	for _, name := range []string{filesName, oldName, newName} {
		if err := os.RemoveAll(filepath.Join(root, name)); err != nil {
			return nil, fmt.Errorf("peer: %w", err)
		}
	}
	var err error
	s.files, err = journal.OpenDirectory(filepath.Join(root, filesName))
	return s, err
}

func (s *state) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.files.Close() // The lock ends with the process in any case.
}

// current returns the directory of the files.
func (s *state) current() *journal.Directory {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.files
}

// cause returns why this peer cannot go on.
func (s *state) cause() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.broken
}

// fail ends the use of this peer: its files differ from those of the others, or its log cannot be
// written. The caller holds the mutex.
func (s *state) fail(err error) error {
	if s.broken == nil {
		s.broken = err
		s.log.Error("this peer cannot go on", "error", err)
		close(s.failed)
	}
	return err
}

// Apply is part of raft.FSM. It returns nil or an error.
func (s *state) Apply(log *raft.Log) any {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return s.broken
	}
	e, err := open(log.Data)
	if err != nil {
		return s.fail(unusable(fmt.Errorf("peer: entry %d of the log in %s: %w: the disk or a program has damaged it: "+
			"move the directory away, and start again: the others hand over all", log.Index, s.root, err)))
	}
	r := &reader{data: e.body}
	switch e.kind {
	case kindBegin:
		s.writer, s.number = e.writer, e.number
		s.leader.Store(&led{r.text(), r.text()})
	case kindStop:
		if e.writer != s.writer {
			return errFenced
		}
		// A process that was started since is not meant, whatever the clocks say.
		for n := r.number(); n > 0 && r.err == nil; n-- {
			if r.number() == s.process && r.err == nil && !isClosed(s.stopped) {
				close(s.stopped)
			}
		}
	case kindFiles:
		if e.writer != s.writer || e.number != s.number+1 {
			return errFenced
		}
		s.number = e.number
		for len(r.data) > 0 && r.err == nil {
			if o := r.operation(); r.err == nil {
				if err := s.operate(o); err != nil {
					return s.fail(fmt.Errorf("peer: %s: %w: mend the disk, or make room on it, and start again", s.files.Path(), err))
				}
			}
		}
	default:
		r.err = fmt.Errorf("its kind %d is unknown: a later version of the program wrote it: start that one", e.kind)
	}
	if r.err != nil {
		return s.fail(fmt.Errorf("peer: entry %d of the log in %s: %w", log.Index, s.root, r.err))
	}
	if s.grown += int64(len(log.Data)); s.grown >= max(s.snapshotBytes, s.content) {
		signal(s.due)
	}
	return nil
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// operate carries out an operation.
func (s *state) operate(o operation) error {
	path := filepath.Join(s.files.Path(), o.name)
	switch o.kind {
	case opMake, opAppend:
		file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}
		if o.kind == opAppend {
			err = appendAt(file, o)
		}
		return errors.Join(err, file.Close())
	case opTruncate:
		return s.truncate(path, o.size)
	case opRename:
		return os.Rename(path, filepath.Join(s.files.Path(), o.to))
	default:
		return os.Remove(path)
	}
}

func appendAt(file *os.File, o operation) error {
	info, err := file.Stat()
	if err == nil && info.Size() != o.size {
		err = fmt.Errorf("%s has %d bytes, and the leader's file %d", o.name, info.Size(), o.size)
	}
	if err == nil {
		_, err = file.Write(o.data)
	}
	return err
}

// truncate cuts a file. A snapshot that is being written has the old one open, and reads what it
// had, so the shorter one is another file.
func (s *state) truncate(path string, size int64) error {
	old, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = old.Close() }() // It is only read.
	info, err := old.Stat()
	if err != nil || info.Size() == size {
		return err
	}
	shorter, err := os.OpenFile(filepath.Join(s.root, newName), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.CopyN(shorter, old, size)
	if err = errors.Join(err, shorter.Close()); err != nil {
		return err
	}
	return os.Rename(shorter.Name(), path)
}

// Snapshot is part of raft.FSM. Files only grow, or are replaced, so what is opened now stays.
func (s *state) Snapshot() (raft.FSMSnapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return nil, s.broken
	}
	names, err := s.files.List()
	if err != nil {
		return nil, err
	}
	taken, err := s.take(s.files.Path(), names)
	if err != nil {
		return nil, err
	}
	s.grown, s.content = 0, taken.bytes()
	return taken, nil
}

// take opens files of a directory as a snapshot. The caller holds the mutex.
func (s *state) take(path string, names []string) (*snapshot, error) {
	slices.Sort(names)
	taken := new(snapshot)
	head := binary.AppendUvarint(nil, snapshotFormat)
	head = binary.AppendUvarint(head, s.writer)
	head = binary.AppendUvarint(head, s.number)
	leader := s.leader.Load()
	if leader == nil {
		leader = new(led)
	}
	head = appendText(appendText(head, leader.id), leader.address)
	head = binary.AppendUvarint(head, uint64(len(names)))
	for _, name := range names {
		file, err := os.Open(filepath.Join(path, name))
		if err != nil {
			taken.Release()
			return nil, err
		}
		taken.files = append(taken.files, file)
		info, err := file.Stat()
		if err != nil {
			taken.Release()
			return nil, err
		}
		taken.sizes = append(taken.sizes, info.Size())
		head = binary.AppendUvarint(appendText(head, name), uint64(info.Size()))
	}
	taken.head = head
	return taken, nil
}

// snapshot is the content of the directory at one time: after the magic, the length of the head,
// the head, and the contents of the files, a CRC-32C of all of it.
type snapshot struct {
	head  []byte
	files []*os.File
	sizes []int64
}

// bytes returns the size of the contents.
func (t *snapshot) bytes() (sum int64) {
	for _, size := range t.sizes {
		sum += size
	}
	return sum
}

// Persist is part of raft.FSMSnapshot.
func (t *snapshot) Persist(sink raft.SnapshotSink) error {
	err := t.write(sink)
	if err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

func (t *snapshot) write(to io.Writer) error {
	out := bufio.NewWriterSize(to, copyBuffer)
	sum := crc32.New(castagnoli)
	all := io.MultiWriter(out, sum)
	head := binary.LittleEndian.AppendUint32([]byte(magic), uint32(len(t.head)))
	if _, err := all.Write(append(head, t.head...)); err != nil {
		return err
	}
	for i, file := range t.files {
		if _, err := io.CopyN(all, file, t.sizes[i]); err != nil {
			return fmt.Errorf("peer: snapshot of %s: %w", file.Name(), err)
		}
	}
	if _, err := out.Write(binary.LittleEndian.AppendUint32(nil, sum.Sum32())); err != nil {
		return err
	}
	return out.Flush()
}

// Release is part of raft.FSMSnapshot.
func (t *snapshot) Release() {
	for _, file := range t.files {
		_ = file.Close() // They are only read.
	}
	t.files = nil
}

// Restore is part of raft.FSM: the content of a snapshot replaces the directory.
func (s *state) Restore(from io.ReadCloser) error {
	defer func() { _ = from.Close() }() // It is only read.
	next := filepath.Join(s.root, newName)
	if err := os.RemoveAll(next); err != nil {
		return err
	}
	directory, err := journal.OpenDirectory(next)
	if err != nil {
		return err
	}
	head, content, err := restore(from, next)
	if err == nil && head.number() != snapshotFormat {
		err = errors.New("peer: the format of the snapshot is unknown: a later version of the program wrote it")
	}
	_ = directory.Close() // It gets another path.
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	path, old := s.files.Path(), filepath.Join(s.root, oldName)
	_ = s.files.Close() // The lock goes with the old directory.
	err = os.RemoveAll(old)
	if err == nil {
		err = os.Rename(path, old)
	}
	if err == nil {
		err = os.Rename(next, path)
	}
	if err == nil {
		err = os.RemoveAll(old)
	}
	var files *journal.Directory
	if err == nil {
		files, err = journal.OpenDirectory(path)
	}
	if err != nil {
		return s.fail(fmt.Errorf("peer: put a snapshot into its place in %s: %w: mend the disk, or make room on it, and start again", s.root, err))
	}
	s.files, s.writer, s.number = files, head.number(), head.number()
	leader := &led{head.text(), head.text()}
	if s.writer == 0 {
		leader = nil
	}
	s.leader.Store(leader)
	s.grown, s.content = 0, content
	return head.err
}

// restore writes the files of a snapshot into a directory. It returns the head, which was read once
// already, from its beginning on, and the size of the files.
func restore(from io.Reader, into string) (_ *reader, content int64, _ error) {
	in, sum := bufio.NewReaderSize(from, copyBuffer), crc32.New(castagnoli)
	data := make([]byte, len(magic)+4)
	if err := full(in, sum, data); err != nil || string(data[:len(magic)]) != magic {
		return nil, 0, errors.Join(errors.New("peer: this is no snapshot"), err)
	}
	size := binary.LittleEndian.Uint32(data[len(magic):])
	if size > mostHead {
		return nil, 0, errors.New("peer: the head of the snapshot is damaged")
	}
	head := make([]byte, size)
	if err := full(in, sum, head); err != nil {
		return nil, 0, err
	}
	r := &reader{data: head}
	r.number() // the format
	r.number() // the writer
	r.number() // its last entry
	r.text()   // the leader
	r.text()   // its address
	for range r.number() {
		name, size := r.name(), int64(r.number())
		if r.err != nil {
			return nil, 0, fmt.Errorf("peer: the head of the snapshot: %w", r.err)
		}
		file, err := os.OpenFile(filepath.Join(into, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, 0, err
		}
		content += size
		_, err = io.CopyN(io.MultiWriter(file, sum), in, size)
		if err = errors.Join(err, file.Close()); err != nil {
			return nil, 0, fmt.Errorf("peer: restore %s: %w", name, err)
		}
	}
	want, got := sum.Sum32(), make([]byte, 4)
	if _, err := io.ReadFull(in, got); err != nil {
		return nil, 0, err
	}
	if binary.LittleEndian.Uint32(got) != want {
		return nil, 0, errors.New("peer: the checksum of the snapshot is wrong")
	}
	return &reader{data: head}, content, nil
}

func full(in io.Reader, sum hash.Hash32, data []byte) error {
	_, err := io.ReadFull(in, data)
	_, _ = sum.Write(data) // It never fails.
	return err
}
