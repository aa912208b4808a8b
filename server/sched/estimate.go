package sched

import (
	"time"

	"github.com/millrace/millrace/internal/ids"
)

const (
	// maxCandidates bounds the holders of inputs that are compared for one task.
	maxCandidates = 8
	// maxCounted bounds the inputs whose replicas are read.
	maxCounted = 64
)

// inputBytes is the total size of a ready task's inputs. For a task with many inputs the sum is
// cached while the task is ready.
func (m *Machine) inputBytes(id ids.TaskID, edges []edge) (total uint64) {
	if len(edges) > maxCounted {
		if known, ok := m.wide[id]; ok {
			return known
		}
	}
	m.reads.inputs += uint64(len(edges))
	for i := range edges {
		_, p := m.at(edges[i].input)
		total += edges[i].bytesOf(p)
	}
	if len(edges) > maxCounted {
		m.wide[id] = total
	}
	return total
}

// outputBytes is the expected size of the object: declared, or learned if above 64 KiB; otherwise
// 0.
func (m *Machine) outputBytes(t *task) uint64 {
	if e := m.options[t.options].ExpectedOutputBytes; e > 0 {
		return e
	}
	if o := &m.ops[t.op]; o.samples > 0 && o.outputBytes > 64<<10 {
		return uint64(o.outputBytes)
	}
	return 0
}

// finishMicros estimates when the worker could finish a task, without the task's own run time: the
// end of the queue, the time to fetch the inputs that are neither there nor on their way, and the
// time to spill if the task does not fit into the free memory.
func (m *Machine) finishMicros(w *worker, edges []edge, need uint64) float64 {
	_, fetch := m.fetchMicros(w, edges)
	queue := w.load()
	f := max(queue, fetch) + min(queue, fetch)/4
	if w.memory > 0 && w.memoryUsed+need > w.memory {
		// Spilling costs about the same as the slowest transfer.
		f += float64(w.memoryUsed+need-w.memory) / (m.config.DefaultBytesPerSecond / 1e6)
	}
	return f
}

// fetchMicros estimates the input bytes that the worker lacks, and the time to fetch them after the
// fetches already under way. The load of the senders needs no extra term: the rates were measured
// on real fetches and include it.
func (m *Machine) fetchMicros(w *worker, edges []edge) (missing uint64, micros float64) {
	var latency, fastest float64
	for i := range edges {
		id := edges[i].input
		pb, p := m.at(id)
		if !m.lacks(w, id, pb, p) {
			continue
		}
		bytes := edges[i].bytesOf(p)
		missing += bytes
		if _, best := m.cheapest(w, pb, p); best.bytesPerMicro > 0 {
			micros += float64(bytes) / best.bytesPerMicro
			latency = max(latency, best.latencyMicros)
			fastest = max(fastest, best.bytesPerMicro)
		}
	}
	if fastest > 0 {
		micros += float64(w.fetchingBytes) / fastest
	}
	return missing, micros + latency
}

// lacks reports whether a worker would have to fetch an input that exists.
func (m *Machine) lacks(w *worker, id ids.TaskID, pb *block, p *task) bool {
	return !w.objects.has(id) && p.state == TaskSucceeded && !w.fetching.has(id) && pb.inlineOf(uint64(id&blockMask)) == nil
}

// cheapest returns the holder from which a worker would get an object fastest, and the rate between
// them; 0 if the object has no holder.
func (m *Machine) cheapest(w *worker, pb *block, p *task) (from ids.WorkerID, best rate) {
	for l := p.replicas; l != 0; l = pb.links[l].next {
		holder := m.workers[pb.links[l].value].id
		if r := m.rate(holder, w.id); from == 0 || r.bytesPerMicro > best.bytesPerMicro {
			from, best = holder, r
		}
		if len(m.rates) == 0 {
			break // without measurements all rates are equal
		}
	}
	return from, best
}

// ratePair is the direction of a transfer between two workers.
type ratePair struct{ from, to ids.WorkerID }

type rate struct {
	bytesPerMicro float64
	latencyMicros float64
}

// rate returns the best known rate of a direction: of the pair, else of the sender, else of the
// receiver, else the default.
func (m *Machine) rate(from, to ids.WorkerID) rate {
	if len(m.rates) > 0 {
		for _, p := range [...]ratePair{{from, to}, {from, 0}, {0, to}, {0, 0}} {
			if r, ok := m.rates[p]; ok {
				return r
			}
		}
	}
	return rate{m.config.DefaultBytesPerSecond / 1e6, float64(m.config.DefaultLatency) / float64(time.Microsecond)}
}

func (m *Machine) rateMeasured(ev RateMeasured) {
	if ev.BytesPerSecond <= 0 {
		return
	}
	for _, id := range []ids.WorkerID{ev.From, ev.To} {
		if id != 0 && m.workerOf(id) == nil {
			return
		}
	}
	m.rates[ratePair{ev.From, ev.To}] = rate{ev.BytesPerSecond / 1e6, float64(ev.Latency) / float64(time.Microsecond)}
}

func (m *Machine) forgetRates(id ids.WorkerID) {
	var gone []ratePair
	// order-free: all of these are deleted.
	for p := range m.rates {
		if p.from == id || p.to == id {
			gone = append(gone, p)
		}
	}
	for _, p := range gone {
		delete(m.rates, p)
	}
}
