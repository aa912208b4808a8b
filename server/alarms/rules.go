package alarms

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// judge applies all rules.
func (m *Machine) judge(seen *Observed) judgements {
	j := judgements{}
	workers := make(map[string]struct{}, len(seen.Workers))
	for i := range seen.Workers {
		w := &seen.Workers[i]
		workers[w.Name] = struct{}{}
		m.judgeDeaths(j, w)
		if w.Lost {
			continue
		}
		m.judgeSpilling(j, w)
		m.judgeGPU(j, w)
		m.judgeDisk(j, w)
		m.judgeMemory(j, w)
	}
	keep(m.memory.spilled, workers)
	keep(m.memory.gpus, workers)
	m.judgeRoutes(j, seen.Routes)
	m.judgeReaders(j, seen.Readers)
	m.judgeOps(j, seen.Ops)
	m.judgeUnserved(j, seen.Unserved)
	m.judgeJournal(j, seen.Journal)
	m.judgeScheduler(j, &seen.Scheduler)
	m.judgePeers(j, seen.Peers)
	return j
}

func (m *Machine) judgeSpilling(j judgements, w *Worker) {
	if w.MemoryBytes == 0 {
		return
	}
	p := &m.policy
	written := windowOf(m.memory.spilled, w.Name).grown(m.now, w.SpillWrittenBytes, p.SpillWindow)
	share := float64(written) / float64(w.MemoryBytes)
	if share <= p.SpillGood {
		return
	}
	j.add(Spilling, w.Name, judgement{
		bad: share >= p.SpillBad, severity: Warning,
		text: fmt.Sprintf("worker %s writes objects to the tier below its memory all the time: %s in the last %s, and its memory has %s; its tasks wait for the disk",
			w.Name, size(written), brief(p.SpillWindow), size(w.MemoryBytes)),
		remedy: fmt.Sprintf("see what fills it with \"millrace memory %s\"; add workers, give each more memory (--memory-limit), use smaller chunks, or release results that nobody needs", w.Name),
	})
}

func (m *Machine) judgeGPU(j judgements, w *Worker) {
	if w.GPU == "" {
		return
	}
	var serious []string
	for _, reason := range w.Throttled {
		// A GPU at full load is often at its power cap. That is how it was built.
		if reason != "power cap" {
			serious = append(serious, reason)
		}
	}
	if len(serious) > 0 {
		j.add(GPUThrottled, w.Name, judgement{
			bad: true, severity: Warning,
			text: fmt.Sprintf("the GPU of worker %s runs below its clock because of: %s (%d °C); its tasks take longer than those of other GPUs",
				w.Name, strings.Join(serious, ", "), w.Celsius),
			remedy: fmt.Sprintf("look at its fans, the air in the rack and its power supply with \"nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER -i %s\"; until it is mended: millrace drain %s", w.GPU, w.Name),
		})
	}
	known := m.memory.gpus[w.Name]
	if known == nil {
		// Errors of the memory are counted over the life of the GPU: only new ones count.
		known = &gpuErrors{ecc: w.UncorrectedECC}
		m.memory.gpus[w.Name] = known
	}
	switch {
	case w.XIDs > known.xids:
		known.at, known.what = m.now, "the driver reported "+cmp.Or(w.LastGPUEvent, "an Xid error")
	case w.UncorrectedECC > known.ecc:
		known.at, known.what = m.now, fmt.Sprintf("its memory lost bits that could not be corrected (%d errors in all)", w.UncorrectedECC)
	}
	known.xids, known.ecc = w.XIDs, w.UncorrectedECC
	if known.at.IsZero() || m.now.Sub(known.at) >= m.policy.GPUErrorKept {
		return
	}
	j.add(GPUError, w.Name, judgement{
		bad: true, severity: Critical,
		text:   fmt.Sprintf("the GPU of worker %s has had an error: %s; results that were in its memory may be lost", w.Name, known.what),
		remedy: fmt.Sprintf("read \"dmesg | grep -i xid\" on its host; to take it out of use: millrace drain %s, then nvidia-smi --gpu-reset -i %s", w.Name, w.GPU),
	})
}

func (m *Machine) judgeDisk(j judgements, w *Worker) {
	p := &m.policy
	remedy := fmt.Sprintf("make room in its --local-directory, or choose a larger disk; see what is there with \"millrace memory %s\"", w.Name)
	if w.DiskFailure != "" {
		j.add(DiskFull, w.Name, judgement{
			bad: true, severity: Critical, remedy: remedy,
			text: fmt.Sprintf("worker %s cannot write objects to its disk: %s; tasks fail for lack of memory when its memory is full", w.Name, w.DiskFailure),
		})
		return
	}
	if share := shareOf(w.DiskUsedBytes, w.DiskBytes); share > p.DiskGood {
		j.add(DiskFull, w.Name, judgement{
			bad: share >= p.DiskBad, severity: Warning, remedy: remedy,
			text: fmt.Sprintf("worker %s has %s of objects on its disk, and may keep %s there; then tasks wait for memory, and fail at last",
				w.Name, size(w.DiskUsedBytes), size(w.DiskBytes)),
		})
	}
}

func (m *Machine) judgeMemory(j judgements, w *Worker) {
	stays := w.MemoryUsedBytes - min(w.MemoryEvictableBytes, w.MemoryUsedBytes)
	share := shareOf(stays, w.MemoryBytes)
	if share <= m.policy.MemoryGood {
		return
	}
	j.add(MemoryFull, w.Name, judgement{
		bad: share >= m.policy.MemoryBad, severity: Warning,
		text: fmt.Sprintf("the memory of worker %s is nearly full: %s of %s cannot leave it; tasks wait for room, and fail with OUT_OF_MEMORY if none comes",
			w.Name, size(stays), size(w.MemoryBytes)),
		remedy: fmt.Sprintf("see what holds it with \"millrace memory %s\"; release results, add workers, or give each more memory (--memory-limit, --spill-limit)", w.Name),
	})
}

func (m *Machine) judgeDeaths(j judgements, w *Worker) {
	n := 0
	for n < len(w.Deaths) && m.now.Sub(w.Deaths[n].At) < m.policy.DeathWindow {
		n++
	}
	if n <= m.policy.DeathsGood {
		return
	}
	j.add(WorkerDies, w.Name, judgement{
		bad: n >= m.policy.DeathsBad, severity: Critical,
		text: fmt.Sprintf("worker %s has died %d times in the last %s, the last time because of: %s; its tasks run elsewhere, or again",
			w.Name, n, brief(m.policy.DeathWindow), cmp.Or(w.Deaths[0].Cause, "an unknown cause")),
		remedy: fmt.Sprintf("read its deaths, with the tasks that ran and the last lines of its log: millrace describe worker %s", w.Name),
	})
}

// judgeRoutes judges the routes that Compare has found to be slow or between.
func (m *Machine) judgeRoutes(j judgements, routes []Standing) {
	p := &m.policy
	for i := range routes {
		r := &routes[i]
		if r.Alike < p.ComparableRoutes || r.taken() < p.RouteTime {
			continue
		}
		text := fmt.Sprintf("worker %s reads from %s at %s/s by %s; the median of its %d such routes is %s/s, so tasks with inputs there wait",
			r.Reader, r.Source, size(uint64(r.BytesPerSecond)), r.Path, r.Alike, size(uint64(r.Median)))
		if r.Order > r.UsualOrder {
			text += "; most of them have a better path"
			if r.Why != "" {
				text += ", and this one has not: " + r.Why
			}
		}
		j.add(SlowRoute, r.Reader+" from "+r.Source, judgement{
			bad: r.BytesPerSecond < r.Median*p.RouteBad, severity: Warning, text: text,
			remedy: fmt.Sprintf("compare all pairs, with the reason for each path: millrace topo; what the hosts lack: millrace doctor; until it is mended: millrace drain %s", r.Source),
		})
	}
}

// judgeReaders judges the readers that Compare has found to be slow or between on all their routes.
func (m *Machine) judgeReaders(j judgements, readers []Reading) {
	p := &m.policy
	for i := range readers {
		r := &readers[i]
		if r.Alike < p.ComparableRoutes || r.Taken < p.RouteTime {
			continue
		}
		name, best := r.Best.Reader, &r.Best
		text := fmt.Sprintf("worker %s reads slowly from all %d workers of this kind: at %s/s at most, by %s from %s; the median of its %d readers is %s/s, so its tasks with inputs elsewhere wait",
			name, r.Routes, size(uint64(best.BytesPerSecond)), best.Path, best.Source, r.Alike, size(uint64(r.Median)))
		if best.Order > r.UsualOrder {
			text += "; most readers have a better path"
			if best.Why != "" {
				text += ", and " + name + " has not: " + best.Why
			}
		}
		j.add(SlowReader, name, judgement{
			bad: best.BytesPerSecond < r.Median*p.ReaderBad, severity: Warning, text: text,
			remedy: fmt.Sprintf("compare all pairs, with the reason for each path: millrace topo; what its host lacks: millrace doctor; what else runs there: top; until it is mended: millrace drain %s", name),
		})
	}
}

func (m *Machine) judgeOps(j judgements, ops []Op) {
	p := &m.policy
	names := make(map[string]struct{}, len(ops))
	for i := range ops {
		o := &ops[i]
		names[o.Name] = struct{}{}
		failed := windowOf(m.memory.failed, o.Name).from(m.now).grown(m.now, o.Failed, p.FailWindow)
		ended := windowOf(m.memory.ended, o.Name).from(m.now).grown(m.now, o.Failed+o.Succeeded, p.FailWindow)
		if failed <= p.FailuresGood {
			continue
		}
		name := cmp.Or(o.Name, "functions without a name")
		j.add(TasksFail, name, judgement{
			bad: failed >= p.FailuresBad && float64(failed) >= p.FailedShare*float64(ended), severity: Warning,
			text: fmt.Sprintf("tasks of %s fail again and again: %d of %d attempts in the last %s, the last time %s",
				name, failed, ended, brief(p.FailWindow), cmp.Or(o.LastFailure, "for an unknown reason")),
			remedy: "see the tracebacks with \"millrace get tasks --state FAILED\" and \"millrace describe task KEY\"; \"millrace cancel GRAPH\" stops a graph that nobody needs",
		})
	}
	keep(m.memory.failed, names)
	keep(m.memory.ended, names)
}

func (m *Machine) judgeUnserved(j judgements, list []Unserved) {
	for i := range list {
		u := &list[i]
		j.add(NoWorker, cmp.Or(u.Op, u.Key, "tasks"), judgement{
			bad: true, severity: Critical,
			text:   fmt.Sprintf("%d ready tasks wait, and no worker can run them (the first is %s): %s", u.Tasks, u.Key, u.Why),
			remedy: "see what each worker lacks: millrace explain " + cmp.Or(u.Key, u.Op),
		})
	}
}

func (m *Machine) judgeJournal(j judgements, k *Journal) {
	if k == nil {
		return
	}
	const subject = "journal"
	remedy := "look at the disk of --journal: free space (df), errors (dmesg), and the time of a sync (millrace_journal_sync_seconds)"
	switch {
	case k.Lost:
		j.add(JournalLags, subject, judgement{bad: true, severity: Critical, remedy: remedy,
			text: "the journal has given up, and nothing new is accepted: " + cmp.Or(k.Trouble, "its disk refused it for too long")})
	case k.Trouble != "":
		j.add(JournalLags, subject, judgement{bad: true, severity: Critical, remedy: remedy,
			text: "the journal cannot be written, and callers wait: " + k.Trouble})
	case k.Lag > m.policy.JournalLagGood:
		j.add(JournalLags, subject, judgement{bad: k.Lag >= m.policy.JournalLagBad, severity: Warning, remedy: remedy,
			text: fmt.Sprintf("records of the journal wait %s for the disk; each submission waits for as long", k.Lag.Round(time.Millisecond))})
	}
}

// judgePeers finds schedulers that do not answer, or lag. It is critical if the loss of one more
// would leave no majority.
func (m *Machine) judgePeers(j judgements, list []Peer) {
	voters, living := 0, 0
	for i := range list {
		if list[i].Votes {
			voters++
			if !list[i].Away {
				living++
			}
		}
	}
	severity, what := Warning, "the others go on if one more fails"
	if living-1 <= voters/2 {
		severity, what = Critical, "if one more fails, nobody can lead, and all calls wait"
	}
	for i := range list {
		switch p := &list[i]; {
		case p.Away && p.Votes:
			j.add(PeerAway, p.Address, judgement{
				bad: true, severity: severity,
				text:   fmt.Sprintf("the scheduler %s does not answer the others (%s); %s", p.Address, cmp.Or(p.Trouble, "it says nothing"), what),
				remedy: "start it again; if its machine is lost, replace it: millrace peers remove " + p.Address,
			})
		case p.Behind > m.policy.PeerGood:
			j.add(PeerAway, p.Address, judgement{
				bad: p.Behind >= m.policy.PeerBad, severity: Warning,
				text:   fmt.Sprintf("the scheduler %s lacks %d entries of what the leader has accepted; it could not take over at once", p.Address, p.Behind),
				remedy: "look at its disk and its network: millrace peers list, and millrace_raft_peer_behind_entries",
			})
		}
	}
}

func (m *Machine) judgeScheduler(j judgements, s *Scheduler) {
	p := &m.policy
	const subject = "scheduler"
	if s.Delay > p.SchedulerGood {
		j.add(SchedulerSlow, subject, judgement{
			bad: s.Delay >= p.SchedulerBad, severity: Warning,
			text:   fmt.Sprintf("calls wait %s for their turn in the scheduler; tasks start late", s.Delay.Round(time.Millisecond)),
			remedy: "give its process a core of its own, use fewer and longer tasks, or submit them in larger batches; a profile says more: docs/runbooks/scheduler_slow.md",
		})
	}
	if share := shareOf(s.HeldBytes, s.LimitBytes); share > p.MemoryGood {
		j.add(MemoryFull, subject, judgement{
			bad: share >= p.MemoryBad, severity: Critical,
			text: fmt.Sprintf("the scheduler holds %s for tasks, of %s that it may; beyond that it refuses submissions",
				size(s.HeldBytes), size(s.LimitBytes)),
			remedy: "release results and graphs that nobody needs (millrace get graphs), or give it more: --scheduler-memory",
		})
	}
}

func shareOf(part, whole uint64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

// size formats bytes for people.
func size(n uint64) string {
	units := [...]string{"B", "KiB", "MiB", "GiB", "TiB"}
	v, u := float64(n), 0
	for v >= 1024 && u < len(units)-1 {
		v /= 1024
		u++
	}
	if u == 0 || v >= 100 {
		return fmt.Sprintf("%.0f %s", v, units[u])
	}
	return fmt.Sprintf("%.1f %s", v, units[u])
}

// brief formats a time of a policy: "5 min".
func brief(d time.Duration) string {
	if d%time.Minute == 0 {
		return fmt.Sprintf("%d min", d/time.Minute)
	}
	return fmt.Sprintf("%d s", d/time.Second)
}
