package executor

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/millrace/millrace/worker/tasklog"
)

const (
	// guardInterval is the time between two measurements of the processes' memory, while any of
	// them has a run. A function that fills memory at 4 GB/s takes 200 MB in this time.
	guardInterval = 50 * time.Millisecond
	// familyLooks is the number of measurements between two searches for processes that processes
	// have started. A search reads a file of each process of the machine.
	familyLooks = 10
	// idleShare is the share of the limit above which an idle process is replaced by another one
	// while no run may begin: no run needs the memory that such a process still holds.
	idleShare = 0.1
)

// MemoryLimit bounds the memory that the processes of all kinds have together, with the processes
// that they have started and without the slab.
type MemoryLimit struct {
	// Bytes is the limit; zero: none.
	Bytes uint64
	// Warn, Pause and End are shares of Bytes. Above Warn, a warning goes to the worker's log and
	// to the output of the task that uses most. Above Pause, idle processes that hold much are
	// replaced, and no run begins while that or a run at work can free memory: runs that only wait
	// for other tasks cannot, and those tasks must begin. Above End, the process that uses most is
	// ended, and its run fails. A share of zero or less switches its step off.
	Warn, Pause, End float64
}

// above reports whether a total is above a share of the limit.
func (l MemoryLimit) above(total uint64, share float64) bool {
	return share > 0 && float64(total) > share*float64(l.Bytes)
}

// kept returns the freed memory in bytes that each of several processes may keep for its next
// allocations: little beside the limit, because it counts against it.
func (l MemoryLimit) kept(processes int) uint64 {
	// All processes together keep one part in share of the limit. least and most bound the bytes
	// that each of them keeps.
	const least, most, share = 64 << 10, 256 << 20, 10
	if l.Bytes == 0 {
		return most
	}
	return min(max(l.Bytes/share/uint64(max(processes, 1)), least), most)
}

// guard enforces a MemoryLimit. It measures the resident anonymous memory of processes: memory that
// several processes map, like the slab, is in none of their shares.
type guard struct {
	pools *Pools
	limit MemoryLimit
	// began has capacity 1. An entry means that a run was handed to a slot.
	began chan struct{}
	// paused: no run may begin.
	paused atomic.Bool
	// high: the memory was above Pause at the last measurement. Used by the guard's goroutine only.
	high bool
	// warned: the memory has been above Warn since the last warning. Used by the guard's goroutine
	// only.
	warned bool
	// families are the processes that each process has started, by pid, as they were at the last of
	// every familyLooks measurements; looks counts those. Used by the guard's goroutine only.
	families map[int][]int
	looks    uint64
	// ending is the process that was ended last. Used by the guard's goroutine only.
	ending *process
}

// user is a process with its memory in bytes.
type user struct {
	process *process
	bytes   uint64
	// source is the run that it works on, nil if it is idle.
	source *tasklog.Source
	// free: it has no run, begun or not. kept: an actor is in it, so it must stay.
	free, kept bool
	// waits: its run waits for other tasks.
	waits bool
}

// note tells the guard that a run was handed to a slot. A nil guard has no limit.
func (g *guard) note() {
	if g == nil {
		return
	}
	select {
	case g.began <- struct{}{}:
	default:
	}
}

// holds reports whether no run may begin. A nil guard has no limit.
func (g *guard) holds() bool { return g != nil && g.paused.Load() }

// run is the guard's goroutine.
func (g *guard) run() {
	ticks := time.NewTicker(guardInterval)
	defer ticks.Stop()
	for {
		select {
		case <-g.pools.closing:
			return
		case <-ticks.C:
		}
		if g.look() {
			continue
		}
		ticks.Stop()
		select {
		case <-g.pools.closing:
			return
		case <-g.began:
		}
		ticks.Reset(guardInterval)
	}
}

// look measures once and acts. It returns false if nothing can change until the next run.
func (g *guard) look() bool {
	users := g.users()
	var total uint64
	var most *user
	active, frees := false, false
	for i := range users {
		u := &users[i]
		total += u.bytes
		active = active || !u.free
		frees = frees || g.frees(u)
		if most == nil || u.bytes > most.bytes {
			most = u
		}
	}
	if most == nil {
		g.pause(false, false, total)
		return g.pools.Working()
	}
	if !g.limit.above(total, g.limit.Warn) {
		g.warned = false
	} else if !g.warned {
		g.warned = true
		g.warn(most, total)
	}
	g.pause(g.limit.above(total, g.limit.Pause), frees, total)
	if g.limit.above(total, g.limit.End) && g.ending != most.process {
		g.end(most, total)
	}
	if g.paused.Load() {
		g.replaceIdle(users)
	}
	return active || g.paused.Load()
}

// frees reports whether a process is about to free memory without the help of runs that have not
// begun: its own run ends, or it is idle and is replaced.
func (g *guard) frees(u *user) bool {
	if u.free {
		return !u.kept && g.limit.above(u.bytes, idleShare)
	}
	return !u.waits
}

// users returns the processes that belong to slots and are ready.
func (g *guard) users() []user {
	var users []user
	for _, slots := range g.pools.slots { // order-free: the memory is added up
		for _, s := range slots {
			s.mu.Lock()
			p := s.process
			u := user{process: p, free: true}
			if p != nil {
				if q := s.atWork(p); q != nil {
					source := q.run.source()
					u.source, u.waits = &source, q.blocked
				}
				u.kept = p.needed
				for _, q := range s.queue {
					u.free = u.free && q.ordinal == 0
				}
			}
			s.mu.Unlock()
			if p != nil {
				users = append(users, u)
			}
		}
	}
	if g.looks%familyLooks == 0 {
		pids := make([]int, 0, len(users))
		for _, u := range users {
			pids = append(pids, u.process.pid())
		}
		g.families = descendants(pids)
	}
	g.looks++
	for i := range users {
		pid := users[i].process.pid()
		users[i].bytes = anonymousBytes(pid)
		for _, child := range g.families[pid] {
			users[i].bytes += anonymousBytes(child)
		}
	}
	return users
}

// text says how much memory is used of how much.
func (g *guard) text(most *user, total uint64) string {
	return fmt.Sprintf("the functions of worker %s use %s of the %s of memory that they may use together (--function-memory-limit), this process (pid %d) %s",
		g.pools.config.Worker, humanize.IBytes(total), humanize.IBytes(g.limit.Bytes), most.process.pid(), humanize.IBytes(most.bytes))
}

func (g *guard) warn(most *user, total uint64) {
	text := g.text(most, total)
	g.pools.config.Log.Warn("functions use much memory", "worker", g.pools.config.Worker, "used", humanize.IBytes(total),
		"limit", humanize.IBytes(g.limit.Bytes), "most_by_pid", most.process.pid(), "most", humanize.IBytes(most.bytes))
	if most.source != nil {
		var steps []string
		if g.limit.Pause > 0 {
			steps = append(steps, fmt.Sprintf("above %.0f %% no further task begins here", 100*g.limit.Pause))
		}
		if g.limit.End > 0 {
			steps = append(steps, fmt.Sprintf("above %.0f %% the largest process is ended", 100*g.limit.End))
		}
		if len(steps) > 0 {
			text += "; " + strings.Join(steps, ", ")
		}
		g.pools.config.Logs.Write(*most.source, true, []byte("millrace: warning: "+text+"\n"))
	}
}

// pause holds runs back while the memory is high and some process is about to free some, and lets
// those begin otherwise that were held back.
func (g *guard) pause(high, frees bool, total uint64) {
	if g.high != high {
		g.high = high
		log := g.pools.config.Log.With("worker", g.pools.config.Worker, "used", humanize.IBytes(total), "limit", humanize.IBytes(g.limit.Bytes))
		if high {
			log.Warn("no task begins while others work: functions use too much memory")
		} else {
			log.Info("tasks begin again: functions use less memory")
		}
	}
	holds := high && frees
	if g.paused.Swap(holds) == holds || holds {
		return
	}
	for _, slots := range g.pools.slots { // order-free: the slots are independent
		for _, s := range slots {
			s.resume()
		}
	}
}

// end kills the process that uses most.
func (g *guard) end(most *user, total uint64) {
	g.ending = most.process
	text := "ended by its worker, because " + g.text(most, total) + "; give functions less data at once, or the worker more memory"
	most.process.overLimit.Store(&text)
	g.pools.config.Log.Error("a process is ended: functions use too much memory", "worker", g.pools.config.Worker, "pid", most.process.pid(),
		"bytes", humanize.IBytes(most.bytes), "used", humanize.IBytes(total), "limit", humanize.IBytes(g.limit.Bytes))
	most.process.kill()
}

// replaceIdle ends processes that have no run and hold much memory; spare ones take their place.
// REQUIRES: no run may begin, so that none is handed to them.
func (g *guard) replaceIdle(users []user) {
	for _, u := range users {
		if !u.free || u.kept || !g.limit.above(u.bytes, idleShare) {
			continue
		}
		s := u.process.slot
		s.mu.Lock()
		idle := s.process == u.process && !u.process.needed
		for _, q := range s.queue {
			idle = idle && q.ordinal == 0
		}
		if idle {
			u.process.replaced.Store(true)
			u.process.kill()
		}
		s.mu.Unlock()
		if idle {
			g.pools.config.Log.Info("an idle process that holds much memory is replaced", "worker", g.pools.config.Worker, "pid", u.process.pid(), "bytes", humanize.IBytes(u.bytes))
		}
	}
}

// descendants returns the processes that each process has started, directly or not, by pid.
func descendants(pids []int) map[int][]int {
	entries, _ := os.ReadDir("/proc") // without it, processes are measured alone
	children := make(map[int][]int)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue // it has ended
		}
		// The name is in parentheses, and may contain some; the state and the parent follow.
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(fields) < 2 {
			continue
		}
		if parent, err := strconv.Atoi(fields[1]); err == nil {
			children[parent] = append(children[parent], pid)
		}
	}
	of := make(map[int][]int)
	for _, pid := range pids {
		for left := children[pid]; len(left) > 0; {
			of[pid] = append(of[pid], left[0])
			left = append(left[1:len(left):len(left)], children[left[0]]...)
		}
	}
	return of
}

// anonymousBytes returns the resident anonymous memory of a process, 0 if it has ended.
func anonymousBytes(pid int) uint64 {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "statm"))
	if err != nil {
		return 0
	}
	// In pages: the size, what is resident, and what of that is in files and shared memory.
	var size, resident, shared uint64
	if _, err := fmt.Sscan(string(text), &size, &resident, &shared); err != nil || resident < shared {
		return 0
	}
	return (resident - shared) * uint64(os.Getpagesize())
}
