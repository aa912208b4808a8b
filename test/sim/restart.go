package sim

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/journal"
	"github.com/millrace/millrace/server/loop"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// restartGrace is how long a restarted scheduler waits for its workers. It is short, so that some
// come later.
const restartGrace = 3 * time.Second

// disk is the directory of the scheduler's journal. dead: its scheduler was killed, and cannot
// change it any more. full: it takes no bytes.
type disk struct {
	files map[string]*content
	dead  bool
	full  bool
}

// content is a file. synced is the number of its first bytes that a loss of power leaves.
type content struct {
	data   []byte
	synced int
}

var errKilled = errors.New("the scheduler was killed")

// change says whether the disk may be changed.
func (d *disk) change() error {
	if d.dead {
		return errKilled
	}
	return nil
}

// left is the disk as the next scheduler finds it. power: it lost its power, too. torn says how
// many of some bytes that were not synced are there all the same.
func (d *disk) left(power bool, torn func(int) int) *disk {
	d.dead = true
	next := &disk{files: map[string]*content{}, full: d.full}
	for _, name := range slices.Sorted(maps.Keys(d.files)) {
		f := d.files[name]
		end := len(f.data)
		if power {
			end = f.synced + torn(end-f.synced)
		}
		next.files[name] = &content{bytes.Clone(f.data[:end]), end}
	}
	return next
}

// List is part of journal.Files.
func (d *disk) List() ([]string, error) { return slices.Sorted(maps.Keys(d.files)), nil }

// Read is part of journal.Files.
func (d *disk) Read(name string) ([]byte, error) {
	if f := d.files[name]; f != nil {
		return bytes.Clone(f.data), nil
	}
	return nil, fs.ErrNotExist
}

// ReadPart is part of journal.Files.
func (d *disk) ReadPart(name string, offset, size int64) ([]byte, error) {
	data, err := d.Read(name)
	if err == nil && int64(len(data)) < offset+size {
		err = errors.New("the file is too short")
	}
	if err != nil {
		return nil, err
	}
	return data[offset : offset+size], nil
}

// Size is part of journal.Files.
func (d *disk) Size(name string) (int64, error) {
	data, err := d.Read(name)
	return int64(len(data)), err
}

// Append is part of journal.Files.
func (d *disk) Append(name string) (journal.File, error) {
	if d.files[name] == nil && !d.dead {
		d.files[name] = &content{}
	}
	return openFile{d, d.files[name]}, d.change()
}

// Rename is part of journal.Files.
func (d *disk) Rename(from, to string) error {
	if !d.dead {
		d.files[to] = d.files[from]
		delete(d.files, from)
	}
	return d.change()
}

// Remove is part of journal.Files.
func (d *disk) Remove(name string) error {
	if !d.dead {
		delete(d.files, name)
	}
	return d.change()
}

// SyncNames is part of journal.Files.
func (d *disk) SyncNames() error { return d.change() }

type openFile struct {
	disk *disk
	*content
}

// Write is part of journal.File. A full disk has room for a half.
func (f openFile) Write(p []byte) (int, error) {
	n, err := len(p), error(nil)
	switch {
	case f.disk.dead:
		return 0, errKilled
	case f.disk.full:
		n, err = n/2, syscall.ENOSPC
	}
	f.data = append(f.data, p[:n]...)
	return n, err
}

// Sync is part of journal.File.
func (f openFile) Sync() error {
	if !f.disk.dead {
		f.synced = len(f.data)
	}
	return f.disk.change()
}

// Truncate is part of journal.File.
func (f openFile) Truncate(size int64) error {
	if !f.disk.dead {
		f.data, f.synced = f.data[:size:size], min(f.synced, int(size))
	}
	return f.disk.change()
}

// Close is part of journal.File.
func (openFile) Close() error { return nil }

// held is a result that a worker held when the scheduler was killed.
type held struct {
	object  object
	process *process
	worker  ids.WorkerID
	at      uint64 // the number of the event
}

// boot starts the scheduler, which goes on from its journal if it has one.
func (s *server) boot() {
	w := s.w
	if s.disk != nil && s.disk.full { // It would wait for room.
		w.after(100*time.Millisecond, s.boot)
		return
	}
	// Clients get numbers that a person can read.
	random := func() uint64 { s.random += 2; return s.random }
	if o := w.coordination; s.starts > 0 && o.chance(0.5) {
		s.skew = o.between(-time.Hour, time.Hour)
		w.log("the clock of the scheduler is ahead by %v", s.skew)
	}
	s.loop = loop.New(loop.Config{
		Machine:        sched.Config{FirstTask: 1, InlineResultBytes: inlineBytes, InlineBudgetBytes: 1 << 10, MaxWorkerDeaths: maxWorkerDeaths, ChainBytes: 8 << 10, Facts: s.disk != nil},
		Cluster:        schedapi.Cluster{Life: life, WorkerLease: workerLease, InlineResultBytes: inlineBytes},
		ReconnectGrace: reconnectGrace,
		RestartGrace:   restartGrace,
		Log:            slog.New(&logHandler{w: w, process: "scheduler", least: slog.LevelInfo}),
		Clock:          func() time.Time { return w.now.Add(s.skew) },
		Random:         random,
	})
	if s.disk != nil {
		if err := s.loop.Restore(context.Background(), journal.Config{Files: s.disk, SegmentBytes: 64 << 10, SnapshotBytes: 32 << 10, RetryTime: time.Millisecond, Random: random}); err != nil {
			w.fail(nil, "the scheduler does not start again: %v", err)
		}
	}
	if err := s.loop.Read(context.Background(), func(r schedapi.Reader) { s.m = r.(*sched.Machine) }); err != nil {
		w.fail(nil, "the scheduler does not start: %v", err)
	}
	s.starts++
	s.up, s.moved = true, s.m.Totals().Moved
	for _, g := range s.acknowledged {
		if _, known := s.m.Graph(g); !known {
			w.fail(nil, "graph %s was acknowledged, and the restarted scheduler does not know it", g)
		}
	}
	s.settle()
}

// kill kills the scheduler, and starts it again later. It forgets nothing that it has acknowledged,
// and computes nothing again that a worker still holds.
func (s *server) kill() {
	w := s.w
	if !s.up {
		return
	}
	power := w.chance(0.3)
	w.log("the scheduler is killed, loss of power %v", power)
	w.counts.restarts++
	s.remember()
	s.up, s.alarm, s.draining, s.moving = false, time.Time{}, nil, false
	s.disk = s.disk.left(power, func(bytes int) int {
		if w.coordination.chance(0.5) {
			return 0
		}
		return w.coordination.rng.IntN(bytes + 1)
	})
	w.coordination.hangUp()
	_ = s.loop.CloseJournal() // It was killed: nothing is written any more.
	for _, x := range s.streams {
		x.link.upBroken = nil
		x.link.cut()
	}
	for _, v := range s.watches {
		v.link.upBroken = nil
		v.link.cut()
	}
	s.streams, s.watches = nil, nil
	w.after(w.between(time.Millisecond, 3*time.Second), s.boot)
}

// fill fills the disk for a while. Nothing new is accepted meanwhile.
func (s *server) fill() {
	s.w.log("the disk is full")
	s.disk.full = true
	s.w.after(s.w.coordination.between(10*time.Millisecond, 2*time.Second), func() {
		s.w.log("the disk has room")
		s.disk.full = false
	})
}

// unwritten says that the scheduler has refused a call because it could not write it down. It may
// have done it all the same.
func unwritten(err error) bool {
	refused := (*schedapi.Error)(nil)
	return errors.As(err, &refused) && refused.Kind == schedapi.ErrJournal
}

// remember notes what a restarted scheduler must know, and the results that workers hold.
func (s *server) remember() {
	s.acknowledged, s.before = nil, map[ids.TaskID]held{}
	for _, d := range s.detached {
		if info, known := s.m.Graph(d.graph); known && info.EndedAt.IsZero() {
			s.acknowledged = append(s.acknowledged, d.graph)
		}
	}
	tasks, _ := s.m.Tasks(sched.TaskFilter{State: sched.TaskSucceeded}, 0, 1<<30)
	for i := range tasks {
		t := &tasks[i]
		for _, id := range t.Replicas {
			o := object{Task: t.Task, Generation: t.Attempt}
			if p := s.process(id); p != nil && p.has(o) {
				s.before[t.Task] = held{o, p, id, s.w.events}
			}
		}
	}
}

// forgetReturned forgets the results that are back or that nobody wants any more: whether those are
// computed again has nothing to do with the restart.
func (s *server) forgetReturned() {
	// order-free: each is examined alone.
	for id, h := range s.before {
		if u, known := s.m.UpdateOf(id); !known || h.process.dead || u.State == sched.TaskSucceeded || u.State == sched.TaskReleased {
			delete(s.before, id)
		}
	}
}

// checkNeeded checks that a task is not computed again after a restart if a worker that came back
// in time still holds its result.
func (s *server) checkNeeded(task ids.TaskID) {
	h, was := s.before[task]
	if !was {
		return
	}
	delete(s.before, task)
	if slices.ContainsFunc(s.m.History(task), func(line string) bool { return strings.Contains(line, "SUCCEEDED → ") }) {
		return // It was back in this step.
	}
	spec, p := s.w.oracle.byTask[task], h.process
	if !p.dead && p.link != nil && p.link.stream != nil && p.link.stream.start == s.starts && s.ids[p.host.name] == h.worker && s.knows(h.worker) && p.has(h.object) && max(spec.retriedAt, spec.cancelledAt) < h.at {
		s.w.fail([]ids.TaskID{task}, "%s is computed again after a restart, and %s is back and holds %s", task, p.host.name, h.object)
	}
}

// whenUp does something as soon as the scheduler runs.
func (s *server) whenUp(do func()) {
	if s.up {
		do()
		return
	}
	s.w.after(100*time.Millisecond, func() { s.whenUp(do) })
}
