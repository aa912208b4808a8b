package journal

import (
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/functions"
	"github.com/millrace/millrace/server/sched"
)

// factKind is the kind of a row of package sched, or of a function.
type factKind kind

const (
	kindCounters factKind = iota + 20
	kindGraphPut
	kindGraphEnded
	kindGraphDropped
	kindGraphDeleted
	kindTasksPut
	kindTasksEnded
	kindDataPut
	kindTaskTroubled
	kindTasksForgotten
	kindRunHoldsPut
	kindHoldsPut
	kindHoldsDeleted
	kindHolderDeleted
	kindRequestPut
	kindFunctionPut
	kindFunctionDeleted
)

// FunctionPut is a function to which tasks refer.
type FunctionPut struct{ functions.Function }

// FunctionDeleted means that no task refers to a function any more.
type FunctionDeleted struct{ Hash ids.FunctionHash }

// codeFact is code for the rows of package sched and functions.
func (c *codec) codeFact(r Record) {
	switch r := r.(type) {
	case *sched.Counters:
		whole(c, &r.NextTask)
		whole(c, &r.NextGraph)
	case *sched.GraphPut:
		whole(c, &r.Graph)
		whole(c, &r.Client)
		c.text(&r.Name)
		c.text(&r.Namespace)
		c.duration(&r.Retention)
		c.time(&r.CreatedAt)
		c.time(&r.EndedAt)
		c.flag(&r.Dropped)
		list(c, &r.Ops, (*codec).opTotal)
	case *sched.GraphEnded:
		whole(c, &r.Graph)
		c.time(&r.At)
	case *sched.GraphDropped:
		whole(c, &r.Graph)
	case *sched.GraphDeleted:
		whole(c, &r.Graph)
	case *sched.TasksPut:
		c.tasksPut(r)
	case *sched.TasksEnded:
		whole(c, &r.State)
		c.taskError(&r.Err)
		if r.Err != nil {
			whole(c, &r.Err.DetailBytes) // It is not that of the detail in errors that share one.
		}
		c.attempts(&r.Tasks)
	case *sched.DataPut:
		whole(c, &r.Task)
		whole(c, &r.Bytes)
		c.payload(&r.Inline)
		if c.reading && r.Inline == nil {
			r.Inline = []byte{} // An object without bytes.
		}
	case *sched.TaskTroubled:
		whole(c, &r.Task)
		for _, n := range []*uint32{&r.Retries, &r.Deaths, &r.Kills, &r.Early, &r.Reschedules} {
			whole(c, n)
		}
		texts(c, &r.Causes)
	case *sched.TasksForgotten:
		runs(c, &r.Tasks)
	case *sched.RunHoldsPut:
		runs(c, &r.Tasks)
	case *sched.HoldsPut:
		c.holder(&r.Holder)
		runs(c, &r.Tasks)
	case *sched.HoldsDeleted:
		c.holder(&r.Holder)
		runs(c, &r.Tasks)
	case *sched.HolderDeleted:
		c.holder(&r.Holder)
	case *sched.RequestPut:
		whole(c, &r.Client)
		c.text(&r.Namespace)
		c.text(&r.Request)
		whole(c, &r.Body)
		whole(c, &r.Graph)
		runs(c, &r.Tasks)
		whole(c, &r.Joined)
		runs(c, &r.Failed)
	case *FunctionPut:
		c.function(&r.Function)
	case *FunctionDeleted:
		c.fixed(r.Hash[:])
	}
}

func factKindOf(r Record) factKind {
	switch r.(type) {
	case *sched.Counters:
		return kindCounters
	case *sched.GraphPut:
		return kindGraphPut
	case *sched.GraphEnded:
		return kindGraphEnded
	case *sched.GraphDropped:
		return kindGraphDropped
	case *sched.GraphDeleted:
		return kindGraphDeleted
	case *sched.TasksPut:
		return kindTasksPut
	case *sched.TasksEnded:
		return kindTasksEnded
	case *sched.DataPut:
		return kindDataPut
	case *sched.TaskTroubled:
		return kindTaskTroubled
	case *sched.TasksForgotten:
		return kindTasksForgotten
	case *sched.RunHoldsPut:
		return kindRunHoldsPut
	case *sched.HoldsPut:
		return kindHoldsPut
	case *sched.HoldsDeleted:
		return kindHoldsDeleted
	case *sched.HolderDeleted:
		return kindHolderDeleted
	case *sched.RequestPut:
		return kindRequestPut
	case *FunctionPut:
		return kindFunctionPut
	case *FunctionDeleted:
		return kindFunctionDeleted
	}
	return 0
}

// newFact returns an empty row; nil if the kind is that of none.
func newFact(k factKind) Record {
	switch k {
	case kindCounters:
		return new(sched.Counters)
	case kindGraphPut:
		return new(sched.GraphPut)
	case kindGraphEnded:
		return new(sched.GraphEnded)
	case kindGraphDropped:
		return new(sched.GraphDropped)
	case kindGraphDeleted:
		return new(sched.GraphDeleted)
	case kindTasksPut:
		return new(sched.TasksPut)
	case kindTasksEnded:
		return new(sched.TasksEnded)
	case kindDataPut:
		return new(sched.DataPut)
	case kindTaskTroubled:
		return new(sched.TaskTroubled)
	case kindTasksForgotten:
		return new(sched.TasksForgotten)
	case kindRunHoldsPut:
		return new(sched.RunHoldsPut)
	case kindHoldsPut:
		return new(sched.HoldsPut)
	case kindHoldsDeleted:
		return new(sched.HoldsDeleted)
	case kindHolderDeleted:
		return new(sched.HolderDeleted)
	case kindRequestPut:
		return new(sched.RequestPut)
	case kindFunctionPut:
		return new(FunctionPut)
	case kindFunctionDeleted:
		return new(FunctionDeleted)
	}
	return nil
}

func (c *codec) opTotal(o *sched.OpTotal) {
	c.text(&o.Name)
	whole(c, &o.Tasks)
}

func (c *codec) holder(h *sched.Holder) {
	whole(c, &h.Kind)
	whole(c, &h.Number)
}

// step codes a number by its difference from the one before.
func step[T ~uint64 | ~uint32 | ~int64](c *codec, p *T, before *T) {
	d := int64(*p) - int64(*before)
	whole(c, &d)
	*p = T(int64(*before) + d)
	*before = *p
}

func (c *codec) tasksPut(r *sched.TasksPut) {
	whole(c, &r.Graph)
	list(c, &r.Ops, (*codec).op)
	list(c, &r.Options, (*codec).options)
	var before sched.TaskRow
	before.Task--
	before.Position--
	list(c, &r.Tasks, func(c *codec, t *sched.TaskRow) {
		if !c.reading {
			// Most tasks follow the one before: then this is zero.
			t := *t
			t.Task, t.Position = t.Task-before.Task-1, t.Position-before.Position-1
			whole(c, &t.Task)
			whole(c, &t.Position)
		} else {
			whole(c, &t.Task)
			whole(c, &t.Position)
			t.Task, t.Position = t.Task+before.Task+1, t.Position+before.Position+1
		}
		before.Task, before.Position = t.Task, t.Position
		step(c, &t.Submitted, &before.Submitted)
		c.text(&t.Key)
		whole(c, &t.Op)
		whole(c, &t.Options)
		whole(c, &t.Inputs)
		c.payload(&t.Arguments)
		c.flag(&t.RunHold)
	})
	var input ids.TaskID
	list(c, &r.Inputs, func(c *codec, in *sched.InputRow) {
		step(c, &in.Task, &input)
		whole(c, &in.Item)
		if in.Item != 0 {
			whole(c, &in.Count)
		}
	})
	list(c, &r.Totals, (*codec).opTotal)
}

// attempts codes attempts, most of which have the number of the one before.
func (c *codec) attempts(p *[]sched.TaskRef) {
	var before sched.TaskRef
	list(c, p, func(c *codec, r *sched.TaskRef) {
		step(c, &r.Task, &before.Task)
		step(c, &r.Attempt, &before.Attempt)
	})
}

// runs codes numbers, many of which follow one another.
func runs[T ~uint64](c *codec, p *[]T) {
	type run struct{ first, length T }
	var all []run
	total := uint64(len(*p))
	whole(c, &total)
	if !c.reading {
		for _, x := range *p {
			if n := len(all); n > 0 && all[n-1].first+all[n-1].length == x {
				all[n-1].length++
			} else {
				all = append(all, run{x, 1})
			}
		}
	}
	var before T
	list(c, &all, func(c *codec, r *run) {
		step(c, &r.first, &before)
		whole(c, &r.length)
	})
	if !c.reading {
		return
	}
	*p = nil
	for _, r := range all {
		// The sizes were checked against the total, and that against a bound.
		if uint64(r.length) > total || total > mostRuns {
			c.fail(errShort)
			return
		}
		for range r.length {
			*p = append(*p, r.first)
			r.first++
		}
		total -= uint64(r.length)
	}
}

// mostRuns bounds the numbers of a row.
const mostRuns = 1 << 28
