package stream

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/millrace/millrace/internal/edge"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/text"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

const (
	// eventRuns bounds the runs in a snapshot, and in one read of the scheduler.
	eventRuns = 2000
	// changedRuns bounds the runs in an event of changes: 5,000 a second are more than a page can
	// draw apart. Of more, those are taken that are spread evenly: the others are not even read.
	changedRuns = 500
	// defaultPage and maxPage are the numbers of runs in an answer of ServeRuns.
	defaultPage, maxPage = 5000, 20_000
	// pageReads bounds the reads of the scheduler for one answer of ServeRuns.
	pageReads = 64
)

// runColumns are the columns of a run. Times are in milliseconds; start_ms counts from the start of
// the scheduler. op_index is an index into the op names of the same event. state is a number of the
// API's TaskState.
const runColumns = `["number","task_id","op_index","worker_id","slot","start_ms","run_ms","fetch_ms","wait_ms",` +
	`"deserialize_ms","publish_ms","output_bytes","input_bytes","state","key","spill_ms"]`

// runs is the topic of finished attempts.
type runs struct {
	scheduler schedapi.Scheduler
	start     time.Time
	// last is the number of the last run that was handed out.
	last    uint64
	encoder runEncoder
}

func (t *runs) update(time.Time) *event {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	var found []sched.Run
	var last uint64
	err := t.scheduler.Read(ctx, func(r schedapi.Reader) { found, last = r.LatestRuns(t.last, changedRuns) })
	if err != nil || len(found) == 0 {
		return nil // The loop has stopped, and the streams end.
	}
	first := t.last + 1
	t.last = last
	return t.event(found, first, last, false)
}

// snapshot returns the latest runs that the viewer does not have.
func (t *runs) snapshot(v *viewer) *event {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	after := v.runsAfter
	if after > t.last {
		after = 0 // It is of another life of the scheduler.
	}
	first := max(after+1, t.last-min(t.last, eventRuns)+1)
	var found []sched.Run
	err := t.scheduler.Read(ctx, func(r schedapi.Reader) {
		found, _ = r.RunsBefore(t.last+1, int(t.last+1-first), sched.RunFilter{})
	})
	if err != nil {
		return nil
	}
	slices.Reverse(found)
	return t.event(found, first, t.last, true)
}

func (t *runs) event(found []sched.Run, first, last uint64, columns bool) *event {
	data := fmt.Appendf(nil, "event: runs\nid: %d\ndata: {\"first\":%d,\"next\":%d,", last, first, last)
	data = t.encoder.appendTo(data, found, t.start, columns)
	return &event{data: append(data, "}\n\n"...), last: last}
}

// runEncoder writes runs as JSON. It reuses its memory.
type runEncoder struct {
	ops   map[string]int
	names []string
}

// appendTo appends the fields op and rows and, with columns, the names of the columns and of the
// workers.
func (e *runEncoder) appendTo(data []byte, found []sched.Run, start time.Time, columns bool) []byte {
	if e.ops == nil {
		e.ops = map[string]int{}
	}
	clear(e.ops)
	e.names = e.names[:0]
	workers := map[ids.WorkerID]string{}
	data = append(data, `"rows":[`...)
	for i := range found {
		r := &found[i]
		op, known := e.ops[r.Op]
		if !known {
			op = len(e.names)
			e.ops[r.Op], e.names = op, append(e.names, r.Op)
		}
		if columns {
			workers[r.WorkerID] = r.Worker
		}
		if i > 0 {
			data = append(data, ',')
		}
		data = appendRun(data, r, op, start)
	}
	data = append(data, `],"op":[`...)
	for i, name := range e.names {
		if i > 0 {
			data = append(data, ',')
		}
		data = quoted(data, name)
	}
	data = append(data, ']')
	if columns {
		data = append(data, `,"columns":`+runColumns+`,"workers":`...)
		names, _ := json.Marshal(workers) // Numbers and texts have a JSON.
		data = append(data, names...)
	}
	return data
}

func appendRun(data []byte, r *sched.Run, op int, start time.Time) []byte {
	state := sched.TaskFailed
	if r.Succeeded {
		state = sched.TaskSucceeded
	}
	begun := max(r.End.Sub(start)-r.RunTime-r.Phases.Publish, 0)
	data = append(data, '[')
	data = strconv.AppendUint(data, r.Number, 10)
	data = append(data, ',', '"') // A number of a task may be larger than those that scripts can hold.
	data = strconv.AppendUint(data, uint64(r.Task), 10)
	data = append(data, '"', ',')
	data = strconv.AppendInt(data, int64(op), 10)
	data = append(data, ',')
	data = strconv.AppendUint(data, uint64(r.WorkerID), 10)
	data = append(data, ',')
	data = strconv.AppendUint(data, uint64(r.Phases.Slot), 10)
	for _, d := range [...]time.Duration{begun, r.RunTime, r.Phases.Fetch, r.Phases.Wait, r.Phases.Deserialize, r.Phases.Publish} {
		data = appendMillis(append(data, ','), d)
	}
	data = append(data, ',')
	data = strconv.AppendUint(data, r.OutputBytes, 10)
	data = append(data, ',')
	data = strconv.AppendUint(data, r.Phases.FetchedBytes, 10)
	data = append(data, ',')
	data = strconv.AppendUint(data, uint64(state), 10)
	data = append(data, ',')
	data = appendMillis(append(quoted(data, r.Key), ','), r.Phases.Load)
	return append(data, ']')
}

// appendMillis appends a duration in milliseconds, to the microsecond.
func appendMillis(data []byte, d time.Duration) []byte {
	micros := d.Microseconds()
	data = strconv.AppendInt(data, micros/1000, 10)
	rest := micros % 1000
	if rest == 0 {
		return data
	}
	return append(data, '.', byte('0'+rest/100), byte('0'+rest/10%10), byte('0'+rest%10))
}

// quoted appends a text as JSON.
func quoted(data []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			text, _ := json.Marshal(s) // Each text has a JSON.
			return append(data, text...)
		}
	}
	data = append(data, '"')
	data = append(data, s...)
	return append(data, '"')
}

// ServeRuns answers with older runs, newest first: those before a number, of an op,
// of a worker, of a task.
func (h *Hub) ServeRuns(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	number := func(name string, otherwise uint64) (uint64, error) {
		if query.Get(name) == "" {
			return otherwise, nil
		}
		n, err := strconv.ParseUint(query.Get(name), 10, 64)
		if err != nil {
			return 0, edge.InvalidField(name, fmt.Sprintf("%q is not a number", text.Cut(query.Get(name), 100)))
		}
		return n, nil
	}
	before, err := number("before", 0)
	if err != nil {
		return err
	}
	limit, err := number("limit", defaultPage)
	if err != nil {
		return err
	}
	limit = min(max(limit, 1), maxPage)
	task, err := number("task", 0)
	if err != nil {
		return err
	}
	filter := sched.RunFilter{Op: query.Get("op"), Worker: query.Get("worker"), Task: ids.TaskID(task)}
	ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
	defer cancel()
	var found []sched.Run
	more := true
	for reads := 0; more && uint64(len(found)) < limit && reads < pageReads; reads++ {
		var some []sched.Run
		err := h.scheduler.Read(ctx, func(r schedapi.Reader) {
			some, before = r.RunsBefore(before, min(int(limit)-len(found), eventRuns), filter)
		})
		if err != nil {
			return err
		}
		found, more = append(found, some...), before != 0
	}
	data := []byte("{")
	if more {
		data = fmt.Appendf(data, `"before":%d,`, before)
	}
	data = new(runEncoder).appendTo(data, found, h.scheduler.Cluster().StartedAt, true)
	writeJSON(w, append(data, '}'))
	return nil
}

func writeJSON(w http.ResponseWriter, data []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(data) // An error means that the reader has left.
}
