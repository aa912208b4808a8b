package sched

import (
	"math/bits"

	"github.com/millrace/millrace/internal/ids"
)

// requestLog remembers the answers to recent submissions, so that a repeated submission is applied
// once.
type requestLog struct {
	index map[requestKey]answered
	order []requestKey
	tasks int
	// removed counts the answers that were removed.
	removed uint64
}

// requestKey identifies a request: its id, together with the client or, for a detached submission,
// the namespace.
type requestKey struct {
	client    ids.ClientID
	namespace string
	request   string
}

// answered is the answer to an accepted submission, with the hash of its content.
type answered struct {
	SubmitResult
	body uint64
}

// bodyHash hashes the tasks of a submission, to tell a repeated submission from a different one.
// The key index needs the hashes of the keys anyway, so they are used here too.
type bodyHash struct{ tasks, inputs uint64 }

func mix(h *uint64, x uint64) { *h = bits.RotateLeft64(*h^x, 29) * 0x9e3779b97f4a7c15 }

func (h *bodyHash) task(t *TaskSpec, key uint64) {
	mix(&h.tasks, key)
	mix(&h.tasks, uint64(t.Op)<<32|uint64(t.Options))
	mix(&h.tasks, uint64(len(t.Inputs)))
	for _, it := range t.Items {
		mix(&h.tasks, uint64(it.Input)<<32|uint64(it.Item))
		mix(&h.tasks, uint64(it.Count))
	}
	if len(t.Arguments) > 0 {
		mix(&h.tasks, hashKeyBytes(t.Arguments))
	}
}

func (h *bodyHash) input(key uint64) { mix(&h.inputs, key) }

// end returns the hash of the whole submission. REQUIRES: all tasks and all inputs were added, in
// their order.
func (h *bodyHash) end(ev *GraphSubmitted) uint64 {
	body := h.tasks
	mix(&body, h.inputs)
	mix(&body, uint64(ev.Graph))
	for i := range ev.Ops {
		mix(&body, uint64(ev.Ops[i].Kind))
		mix(&body, hashKey(ev.Ops[i].Name))
		mix(&body, hashKeyBytes(ev.Ops[i].Function[:]))
	}
	for i := range ev.Options {
		text, _, place := canonical(&ev.Options[i])
		mix(&body, hashKey(text))
		mix(&body, hashKey(place))
	}
	return body
}

// bodyOf hashes a submission whose tasks are not read in another way.
func bodyOf(ev *GraphSubmitted) uint64 {
	var h bodyHash
	for i := range ev.Tasks {
		t := &ev.Tasks[i]
		h.task(t, hashKey(t.Key))
		for _, in := range t.Inputs {
			h.input(hashKey(in))
		}
	}
	return h.end(ev)
}

const (
	keptRequests = 10_000
	// keptRequestTasks bounds the task ids in remembered answers. The latest answer is always kept.
	keptRequestTasks = 2 << 20
)

// add adds an answer, or replaces the one that is there.
func (l *requestLog) add(k requestKey, r answered) {
	if old, known := l.index[k]; known {
		l.tasks -= len(old.Tasks)
	} else {
		l.order = append(l.order, k)
	}
	l.index[k] = r
	l.tasks += len(r.Tasks)
	for len(l.order) > 1 && (len(l.order) > keptRequests || l.tasks > keptRequestTasks) {
		l.tasks -= len(l.index[l.order[0]].Tasks)
		delete(l.index, l.order[0])
		l.order = l.order[1:]
		l.removed++
	}
}

func (k requestKey) row(r answered) *RequestPut {
	return &RequestPut{Client: k.client, Namespace: k.namespace, Request: k.request, Body: r.body, Graph: r.Graph, Tasks: r.Tasks, Joined: r.Joined, Failed: r.Failed}
}

// rows calls put for the answers from one on, which counts the removed ones, too. It returns the
// next one, and false after the last.
func (l *requestLog) rows(from uint64, put func(Row)) (next uint64, more bool) {
	from = max(from, l.removed)
	for tasks := 0; from < l.removed+uint64(len(l.order)); from++ {
		if tasks > keptWork {
			return from, true
		}
		k := l.order[from-l.removed]
		put(k.row(l.index[k]))
		tasks += len(l.index[k].Tasks) + 8
	}
	return from, false
}
