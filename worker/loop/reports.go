package loop

import (
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/session"
	"github.com/millrace/millrace/worker/tasklog"
)

// reports makes the reports on attempts.
type reports struct {
	// worker is the name of this worker.
	worker string
	logs   *tasklog.Logs
}

// failed makes the report on an attempt that the machine never received.
func (p *reports) failed(a *attempt, reason, message string) *workerv1.TaskReport {
	r := session.ReportOn(a.ref, lifecycle.Failed)
	r.Error = p.complete(&millracev1.TaskError{Reason: reason, Message: message}, a)
	return r
}

// complete fills in the fields that every error has, unless they are set.
func (p *reports) complete(e *millracev1.TaskError, a *attempt) *millracev1.TaskError {
	if e.Worker == "" {
		e.Worker = p.worker
	}
	e.Attempt = uint32(a.ref.Attempt)
	if e.OriginKey == "" {
		e.OriginKey = a.key
	}
	if e.LogTail == "" {
		e.LogTail = p.logs.Tail(a.ref.Task, a.ref.Attempt)
	}
	return e
}

// ran makes the report on a run.
func (p *reports) ran(a *attempt, outcome lifecycle.Outcome, bytes uint64, inline []byte, took time.Duration, fault *millracev1.TaskError) {
	r := session.ReportOn(a.ref, outcome)
	r.OutputBytes, r.InlineResult, r.RunNanos, r.FetchedBytes, r.Slot = bytes, inline, uint64(took), a.fetched, uint32(a.slot)+1
	r.FetchNanos, r.LoadNanos, r.WaitNanos = uint64(a.fetching), uint64(a.loading), uint64(a.waiting)
	if fault != nil {
		r.Error = p.complete(fault, a)
	}
	a.report = r
}

// cannotRun makes the report on an attempt that has an error before it runs, because of an input,
// counted from 1.
func (p *reports) cannotRun(a *attempt, input uint32, fault *millracev1.TaskError) lifecycle.Event {
	a.report = session.ReportOn(a.ref, lifecycle.Failed)
	a.report.Error, a.report.InputAtFault = p.complete(fault, a), input
	return lifecycle.RunEnded{Ref: a.ref, Outcome: lifecycle.Failed}
}

// report makes the report that the machine orders on an attempt, nil if it is unknown. It says
// whether that is the final one.
func (p *reports) report(e *lifecycle.Report, a *attempt) (r *workerv1.TaskReport, final bool) {
	r = session.ReportOn(e.Ref, e.Outcome)
	switch e.Outcome {
	case lifecycle.Started, lifecycle.RetractRefused, lifecycle.WaitsForTasks, lifecycle.GoesOn:
		return r, false
	case lifecycle.Failed, lifecycle.ExecutorDied, lifecycle.Dropped:
		if a != nil && a.report != nil {
			a.report.Outcome = r.Outcome
			r = a.report
		}
		if e.Reason != "" {
			r.Error = p.complete(&millracev1.TaskError{Reason: e.Reason, Message: e.Message}, a)
		}
		r.InlineResult, r.OutputBytes = nil, 0
	case lifecycle.InputUnreachable:
		if a != nil && a.report != nil {
			r.Unreachable = a.report.GetUnreachable()
		}
		for i := range e.Unreachable {
			r.Unreachable = append(r.Unreachable, session.UnreachableOf(&e.Unreachable[i]))
		}
	case lifecycle.Succeeded, lifecycle.GivenBack:
	}
	return r, true
}
