// Package perfetto is an Adapter: it writes the attempts of tasks in the Trace Event Format, which
// https://ui.perfetto.dev and chrome://tracing open.
package perfetto

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
)

// Trace is what the scheduler keeps of the attempts of a graph.
type Trace struct {
	// Runs are in the order of their ends, the newest first.
	Runs []*pb.TaskRun
	// Restart is the time at which the scheduler was started again after the graph had begun: it
	// keeps no attempt that ended before. Zero: there was none.
	Restart time.Time
	// Missing says which attempts are not there, and why; empty: all are there.
	Missing string
}

// Read reads the attempts of a graph that the scheduler keeps. A graph without any is an error.
func Read(ctx context.Context, s pb.SchedulerServiceClient, id uint64) (*Trace, error) {
	graph, err := s.GetGraph(ctx, &pb.GetGraphRequest{GraphId: id})
	if err != nil {
		return nil, err
	}
	cluster, err := s.GetClusterInfo(ctx, &pb.GetClusterInfoRequest{})
	if err != nil {
		return nil, err
	}
	tr := &Trace{}
	request := &pb.ListTaskRunsRequest{PageSize: 1000, GraphId: id}
	for {
		page, err := s.ListTaskRuns(ctx, request)
		if err != nil {
			return nil, err
		}
		tr.Runs = append(tr.Runs, page.GetRuns()...)
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			break
		}
	}
	c := graph.GetGraph().GetCounts()
	ended, start := c.GetSucceeded()+c.GetReleased()+c.GetRescuing(), cluster.GetCluster().GetStartTime().AsTime()
	switch {
	case graph.GetGraph().GetCreateTime().AsTime().Before(start):
		tr.Restart = start
		tr.Missing = fmt.Sprintf("the scheduler was started again at %s, after graph g%d had begun: it keeps no attempt that ended before", start.Format(time.RFC3339), id)
	case uint64(len(tr.Runs)) < ended:
		tr.Missing = fmt.Sprintf("the scheduler does not keep the attempts of the other %d tasks of the graph any more", ended-uint64(len(tr.Runs)))
	}
	if len(tr.Runs) == 0 {
		message := fmt.Sprintf("graph g%d has no attempt that has ended and is still kept: see `millrace describe graph g%d`", id, id)
		if !tr.Restart.IsZero() {
			message = tr.Missing
		}
		return nil, status.Error(codes.NotFound, message)
	}
	return tr, nil
}

// Write writes a file with the attempts.
func (t *Trace) Write(w io.Writer) error {
	events := eventsOf(t.Runs)
	if !t.Restart.IsZero() {
		events = append(events, event{
			Kind: "i", Scope: "g", Category: "restart", Name: "restart of the scheduler: earlier attempts are not kept", Time: micros(t.Restart.UnixNano()),
		})
	}
	return encode(w, events)
}

// event is an event of the Trace Event Format: a slice of a track (X), a counter (C), a moment (i)
// or a name (M).
type event struct {
	Kind     string         `json:"ph"`
	Category string         `json:"cat,omitempty"`
	Name     string         `json:"name"`
	Worker   uint32         `json:"pid"`
	Track    uint32         `json:"tid"`
	Time     micros         `json:"ts"`
	Length   micros         `json:"dur,omitempty"`
	Args     map[string]any `json:"args,omitempty"`
	Scope    string         `json:"s,omitempty"` // of a moment; g: of all workers
}

// micros are nanoseconds that are written as microseconds, with all digits.
type micros int64

// MarshalJSON implements json.Marshaler.
func (m micros) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "%d.%03d", int64(m)/1000, int64(m)%1000), nil
}

// encode writes the file, one event on each line.
func encode(w io.Writer, events []event) error {
	b := bufio.NewWriter(w)
	_, _ = b.WriteString(`{"displayTimeUnit":"ms","traceEvents":[`) // Flush returns the error.
	for i := range events {
		text, err := json.Marshal(&events[i])
		if err != nil {
			return err
		}
		if i > 0 {
			_ = b.WriteByte(',')
		}
		_ = b.WriteByte('\n')
		_, _ = b.Write(text)
	}
	_, _ = b.WriteString("\n]}\n")
	return b.Flush()
}

// eventsOf returns the events of all attempts, worker by worker.
func eventsOf(runs []*pb.TaskRun) (events []event) {
	of := map[uint32][]*pb.TaskRun{}
	for _, r := range runs {
		of[r.GetWorkerId()] = append(of[r.GetWorkerId()], r)
	}
	for _, id := range slices.Sorted(maps.Keys(of)) {
		w := &worker{id: id, slots: map[uint32]*lanes{}, tracks: map[uint32]string{}}
		for _, r := range slices.Backward(of[id]) {
			w.add(r)
		}
		events = append(events, event{Kind: "M", Name: "process_name", Worker: id, Args: map[string]any{"name": of[id][0].GetWorker()}})
		for _, track := range slices.Sorted(maps.Keys(w.tracks)) {
			events = append(events,
				event{Kind: "M", Name: "thread_name", Worker: id, Track: track, Args: map[string]any{"name": w.tracks[track]}},
				event{Kind: "M", Name: "thread_sort_index", Worker: id, Track: track, Args: map[string]any{"sort_index": track}})
		}
		events = append(append(events, w.events...), w.counters()...)
	}
	return events
}

// The numbers of tracks: first those of inputs, then those of slots.
const (
	slotTracks   = 1 << 16 // the first track of a slot is at its number times lanesOfSlot above this
	lanesOfSlot  = 64
	latestReport = time.Second
)

// lanes are parallel tracks, of which each has slices that do not overlap. Slices are placed from
// the last one to the first one. A lane is the time at which its first slice begins.
type lanes []time.Time

// place finds the first lane with room for a slice that is at most `slack` earlier. It returns how
// much earlier that is.
func (l *lanes) place(begin, end time.Time, slack time.Duration) (lane int, earlier time.Duration) {
	for i, free := range *l {
		if earlier := max(end.Sub(free), 0); earlier <= slack {
			(*l)[i] = begin.Add(-earlier)
			return i, earlier
		}
	}
	*l = append(*l, begin)
	return len(*l) - 1, 0
}

// worker collects the events of one worker.
type worker struct {
	id      uint32
	slots   map[uint32]*lanes
	inputs  lanes
	tracks  map[uint32]string // names by number
	events  []event
	changes []change
}

// change is a change of the counters.
type change struct {
	time    time.Time
	running int
	bytes   uint64
}

// add adds an attempt that ended before those that were added earlier.
func (w *worker) add(r *pb.TaskRun) {
	end := r.GetEndTime().AsTime()
	publish, run, deserialize := r.GetPublishTime().AsDuration(), r.GetRunTime().AsDuration(), r.GetDeserializeTime().AsDuration()
	begin := end.Add(-publish - run - deserialize)
	slot := w.slots[r.GetSlot()]
	if slot == nil {
		slot = new(lanes)
		w.slots[r.GetSlot()] = slot
	}
	// A worker reports several ends together. A slot runs one task after the other, so the earlier
	// ones ended before. A task that waits for others gives its slot away, and has a track beside.
	slack := latestReport
	if r.GetSlot() == 0 {
		slack = 0
	}
	lane, earlier := slot.place(begin, end, slack)
	begin = begin.Add(-earlier)
	track := slotTracks + r.GetSlot()*lanesOfSlot + uint32(min(lane, lanesOfSlot-1))
	w.tracks[track] = slotName(r.GetSlot(), lane)
	task := fmt.Sprintf("t%d", r.GetTaskId())
	slice := func(track uint32, category, name string, begin time.Time, length time.Duration, args map[string]any) {
		if length > 0 || args["key"] != nil {
			w.events = append(w.events, event{Kind: "X", Category: category, Name: name, Worker: w.id, Track: track, Time: micros(begin.UnixNano()), Length: micros(max(length, 1)), Args: args})
		}
	}
	brief := map[string]any{"task": task}
	name := r.GetOp()
	if !r.GetSucceeded() {
		name += " (failed)"
	}
	slice(track, "deserialise", "deserialise", begin, deserialize, brief)
	called := begin.Add(deserialize)
	slice(track, "task", cmp.Or(name, "task"), called, run, map[string]any{
		"key": r.GetKey(), "task": task, "attempt": r.GetAttempt(), "result_bytes": r.GetOutputBytes(), "fetched_bytes": r.GetFetchedBytes(),
	})
	slice(track, "publish", "publish", called.Add(run), publish, brief)
	w.changes = append(w.changes, change{time: called, running: 1}, change{time: called.Add(run), running: -1, bytes: r.GetOutputBytes()})

	fetch, load, wait := r.GetFetchTime().AsDuration(), r.GetLoadTime().AsDuration(), r.GetWaitTime().AsDuration()
	if fetch+load+wait <= 0 {
		return
	}
	first := begin.Add(-fetch - load - wait)
	input, _ := w.inputs.place(first, begin, 0)
	inputs := uint32(min(input+1, slotTracks-1)) // Perfetto keeps track 0 for the idle thread
	w.tracks[inputs] = fmt.Sprintf("inputs %d", input+1)
	slice(inputs, "fetch", "fetch", first, fetch, map[string]any{"task": task, "bytes": r.GetFetchedBytes()})
	slice(inputs, "load", "read from lower tiers", first.Add(fetch), load, brief)
	slice(inputs, "wait", "wait for memory", first.Add(fetch+load), wait, brief)
}

func slotName(slot uint32, lane int) string {
	name := fmt.Sprintf("slot %d", slot)
	if slot == 0 {
		name = "slot unknown"
	}
	if lane > 0 {
		name += fmt.Sprintf(", beside %d", lane)
	}
	return name
}

// counters returns the number of running tasks and the bytes of results at each change.
func (w *worker) counters() (events []event) {
	slices.SortStableFunc(w.changes, func(a, b change) int { return a.time.Compare(b.time) })
	var running int
	var bytes uint64
	for i, c := range w.changes {
		running, bytes = running+c.running, bytes+c.bytes
		if i+1 < len(w.changes) && w.changes[i+1].time.Equal(c.time) {
			continue
		}
		at := micros(c.time.UnixNano())
		events = append(events, event{Kind: "C", Name: "running tasks", Worker: w.id, Time: at, Args: map[string]any{"tasks": running}})
		if c.bytes > 0 {
			events = append(events, event{Kind: "C", Name: "results made", Worker: w.id, Time: at, Args: map[string]any{"bytes": bytes}})
		}
	}
	return events
}
