package sched

import (
	"math"
	"slices"

	"github.com/millrace/millrace/internal/ids"
)

// leastLoaded picks the worker with the shortest queue among those with room; equal ones take
// turns. avoid is picked only if no other worker has room. open counts the workers with room;
// extra is that of room.
func (m *Machine) leastLoaded(from []*worker, c *class, extra uint64, avoid ids.WorkerID, fits func(*worker) bool) (best *worker, open int) {
	n := len(from)
	m.rotate++
	if m.rotate >= n {
		m.rotate = 0
	}
	least := math.Inf(1)
	for i := range n {
		k := i + m.rotate
		if k >= n {
			k -= n
		}
		w := from[k]
		if !m.room(w, c, extra) || fits != nil && !fits(w) {
			continue
		}
		open++
		load := w.load()
		if w.id == avoid {
			load += 1e12
		}
		if load < least {
			best, least = w, load
		}
	}
	return best, open
}

// placement is the verdict of choose.
type placement uint8

const (
	placeHere placement = iota + 1
	// placeFull: no worker of the class has room.
	placeFull
	// placeLater: workers have room, but at none of them the task's memory fits and its inputs can
	// be fetched.
	placeLater
	// placeNowhere: the task's memory fits no worker of the class.
	placeNowhere
	// placeUnreachable: no worker of the class could fetch the inputs.
	placeUnreachable
)

// choose picks the worker with the earliest estimated finish among the holders of the task's inputs
// and the least loaded worker. The inputs and the declared size of the result must fit into its
// memory. The learned size of the result is only a mean, so it affects the estimate only. extra is
// that of room.
func (m *Machine) choose(c *class, from []*worker, extra uint64, id ids.TaskID, b *block, t *task) (*worker, placement) {
	m.stamp++
	stamp := m.stamp
	edges := b.edgesOf(t)
	total := m.inputBytes(id, edges)
	candidates := m.scratch.candidates[:0]
	for i := range edges[:min(len(edges), maxCounted)] {
		pb, p := m.at(edges[i].input)
		for l := p.replicas; l != 0; l = pb.links[l].next {
			w := m.workers[pb.links[l].value]
			if w.mark != stamp {
				w.mark, w.present = stamp, 0
				candidates = append(candidates, w)
			}
			w.present += edges[i].bytesOf(p)
		}
	}
	need := total + m.outputBytes(t)
	least := total + m.options[t.options].ExpectedOutputBytes
	fits := func(w *worker) bool { return w.memory == 0 || least <= w.memory }
	limited := false
	if least > 0 {
		some := false
		for _, w := range from {
			if fits(w) {
				some = true
			} else {
				limited = true
			}
		}
		if !some {
			m.scratch.candidates = candidates
			return nil, placeNowhere
		}
	}
	some := from
	if from = m.usable(c, some, id, b, t, fits); !slices.ContainsFunc(from, fits) {
		m.scratch.candidates = candidates
		return nil, placeUnreachable
	}
	var avoid ids.WorkerID
	if tr := m.troubleIf(id, t); tr != nil {
		avoid = tr.avoid
	}
	var check func(*worker) bool
	if limited {
		check = fits
	}
	idle, open := m.leastLoaded(from, c, extra, avoid, check)
	if idle == nil {
		m.scratch.candidates = candidates
		if len(from) != len(some) || from[0] != some[0] {
			return nil, placeLater
		}
		if limited && open == 0 {
			if any, _ := m.leastLoaded(from, c, extra, 0, nil); any != nil {
				return nil, placeLater
			}
		}
		return nil, placeFull
	}
	if len(candidates) > maxCandidates {
		slices.SortStableFunc(candidates, func(x, y *worker) int {
			switch {
			case x.present > y.present:
				return -1
			case x.present < y.present:
				return 1
			}
			return int(int64(x.id) - int64(y.id))
		})
		candidates = candidates[:maxCandidates]
	}
	m.scratch.candidates = candidates
	if idle.mark != stamp {
		idle.mark, idle.present = stamp, 0
	}
	best := idle
	soonest := m.finishMicros(idle, edges, need)
	if idle.id == avoid {
		soonest += 1e12
	}
	for _, w := range candidates {
		if w == idle || w.state != WorkerStateActive || w.id == avoid || !slices.Contains(from, w) || !fits(w) ||
			!m.room(w, c, extra) && !m.holderRoom(w, c) {
			continue
		}
		if f := m.finishMicros(w, edges, need); f < soonest || f == soonest && w.present > best.present {
			best, soonest = w, f
		}
	}
	return best, placeHere
}
