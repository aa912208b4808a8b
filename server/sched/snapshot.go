package sched

import (
	"maps"
	"slices"

	"github.com/millrace/millrace/internal/ids"
)

// Rows calls put for the rows of a part of the durable state, and returns the cursor of the next
// part; more is false after the last one. The cursor of the first part is 0. A part has about as
// many rows as a block of tasks. Steps may come between the parts. The facts of these steps have
// their changes, so all parts, followed by all facts since the first part, give the whole state.
func (m *Machine) Rows(cursor uint64, put func(Row)) (next uint64, more bool) {
	section, at := cursor>>sectionShift, cursor&(1<<sectionShift-1)
	switch section {
	case sectionGraphs:
		if at == 0 {
			put(&Counters{NextTask: m.nextID, NextGraph: m.nextGraph})
		}
		end := min(at+graphsAtOnce, uint64(len(m.graphs)))
		for _, g := range m.graphs[min(at, end):end] {
			if g != nil {
				put(g.row())
			}
		}
		if end < uint64(len(m.graphs)) {
			return end, true
		}
		return sectionRequests << sectionShift, true
	case sectionRequests:
		if next, more := m.requests.rows(at, put); more {
			return sectionRequests<<sectionShift | next, true
		}
		return sectionTasks << sectionShift, true
	default:
		more := false
		m.tasks.each(at, func(b *block) bool {
			m.blockRows(b, put)
			next, more = sectionTasks<<sectionShift|(b.number+1), true
			return false
		})
		return next, more
	}
}

// Sections of the cursor of Rows.
const (
	sectionGraphs = iota
	sectionRequests
	sectionTasks
	sectionShift = 60
	graphsAtOnce = blockTasks
)

// blockRows calls put for the rows of the tasks of a block.
func (m *Machine) blockRows(b *block, put func(Row)) {
	var r *TasksPut
	ops, opts := map[uint32]uint32{}, map[uint32]uint32{}
	holds := map[uint32][]ids.TaskID{}
	var ends []Row
	graph := uint32(0)
	for i := range b.tasks {
		t := &b.tasks[i]
		if t.state == 0 {
			continue
		}
		id := ids.TaskID(b.number<<blockBits | uint64(i))
		if r == nil || t.graph != graph {
			if r != nil {
				put(r)
			}
			graph, r = t.graph, &TasksPut{Graph: m.graphs[t.graph].id}
			clear(ops)
			clear(opts)
		}
		op, ok := ops[t.op]
		if !ok {
			op = uint32(len(r.Ops))
			ops[t.op], r.Ops = op, append(r.Ops, m.ops[t.op].spec)
		}
		option := uint32(0)
		if t.options != 0 {
			if option, ok = opts[t.options]; !ok {
				r.Options = append(r.Options, m.options[t.options].Options)
				option = uint32(len(r.Options))
				opts[t.options] = option
			}
		}
		r.Tasks = append(r.Tasks, TaskRow{Task: id, Key: string(b.keyOf(t)), Op: op, Options: option, Inputs: t.inputs, Arguments: b.argsOf(t, uint64(i)),
			Position: t.rank & positionMask, Submitted: b.base.UnixMilli() + int64(t.submitted), RunHold: t.flags&flagRunHold != 0})
		edges := b.edgesOf(t)
		for k := range edges {
			r.Inputs = append(r.Inputs, InputRow{edges[k].input, edges[k].item, edges[k].count.number()})
		}
		for l := t.holders; l != 0; l = b.links[l].next {
			holds[b.links[l].value] = append(holds[b.links[l].value], id)
		}
		ends = m.endRows(id, b, t, ends)
	}
	if r != nil {
		put(r)
	}
	for _, end := range ends {
		put(end)
	}
	for _, h := range slices.Sorted(maps.Keys(holds)) {
		put(&HoldsPut{Holder: m.holders[h].number(), Tasks: holds[h]})
	}
}

// endRows appends the rows of the end and of the troubles of a task.
func (m *Machine) endRows(id ids.TaskID, b *block, t *task, rows []Row) []Row {
	if tr := m.troubleIf(id, t); tr != nil && tr.durable() {
		rows = append(rows, tr.row(id))
	}
	state, data := t.state, m.ops[t.op].spec.Kind == OpData
	switch {
	case state == TaskSucceeded || state == TaskRescuing || t.state.active() && !t.undone() || data && state == TaskWaiting && m.dataLost(id):
		state = TaskSucceeded
	case data && state == TaskReleased && t.attempt > 0:
		state = TaskSucceeded // If it is wanted again, nobody brings its bytes.
	case state == TaskFailed || state == TaskCancelled:
	default:
		return rows
	}
	if inline := b.inlineOf(uint64(id & blockMask)); inline != nil && data {
		rows = append(rows, &DataPut{Task: id, Bytes: t.output, Inline: inline})
	}
	err := m.errors[id]
	var r *TasksEnded
	if n := len(rows); n > 0 {
		r, _ = rows[n-1].(*TasksEnded)
	}
	if r == nil || r.State != state || r.Err != err {
		r = &TasksEnded{State: state, Err: err}
		rows = append(rows, r)
	}
	r.Tasks = append(r.Tasks, TaskRef{id, ids.Attempt(t.attempt)})
	return rows
}
