package cli

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

const traceHelp = `Writes when and where the tasks of a graph ran to a file that https://ui.perfetto.dev and chrome://tracing open; without a
file name to millrace-GRAPH.json, with - to stdout.

Each worker is a process with one track for each slot: deserialise, run, publish. Above the slots are the times that tasks
waited for their inputs (fetch: from other workers or from lower tiers) and for memory. Counters show the tasks that run and
the bytes of results. All times are from the clock of the scheduler, in microseconds since 1970. It has the attempts that have
ended, as far as the scheduler keeps them: the latest ones of the cluster, also those of released tasks.`

func (a *app) trace() *cobra.Command {
	cmd := &cobra.Command{
		Use: "trace g3 [FILE]", Short: "Write a file for ui.perfetto.dev: when and where the tasks of a graph ran", Long: traceHelp, Args: between(1, 2), ValidArgsFunction: a.completeTrace,
		RunE: func(cmd *cobra.Command, args []string) error {
			n, ok := number(args[0], 'g')
			if !ok {
				return usageError{fmt.Errorf("trace %s: a graph, as in g3", args[0])}
			}
			name := fmt.Sprintf("millrace-g%d.json", n)
			if len(args) > 1 {
				name = args[1]
			}
			return a.call(cmd, func(ctx context.Context, _ *millrace.Client, s millracev1.SchedulerServiceClient) error {
				return a.writeTrace(ctx, s, n, name)
			})
		},
	}
	addTimeout(cmd)
	return cmd
}

func (a *app) writeTrace(ctx context.Context, s millracev1.SchedulerServiceClient, id uint64, name string) error {
	graph, err := s.GetGraph(ctx, &millracev1.GetGraphRequest{GraphId: id})
	if err != nil {
		return err
	}
	var runs []*millracev1.TaskRun
	request := &millracev1.ListTaskRunsRequest{PageSize: 1000, GraphId: id}
	for {
		page, err := s.ListTaskRuns(ctx, request)
		if err != nil {
			return err
		}
		runs = append(runs, page.GetRuns()...)
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			break
		}
	}
	if len(runs) == 0 {
		return status.Errorf(codes.NotFound, "graph g%d has no attempt that has ended and is still kept: see `millrace describe graph g%d`", id, id)
	}
	text := func(w io.Writer) error { return encodeTrace(w, traceOf(runs)) }
	if name == "-" {
		return text(a.out)
	}
	if err := createFile(name, text); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(a.out, "%s: %s; open it in https://ui.perfetto.dev\n", name, several(len(runs), "attempt"))
	c := graph.GetGraph().GetCounts()
	if ended := c.GetSucceeded() + c.GetReleased() + c.GetRescuing(); uint64(len(runs)) < ended {
		_, _ = fmt.Fprintf(a.err, "the scheduler does not keep the attempts of the other %d tasks of the graph any more\n", ended-uint64(len(runs)))
	}
	return nil
}

// createFile makes a file, or leaves none if write fails.
func createFile(name string, write func(io.Writer) error) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	err = errors.Join(write(file), file.Close())
	if err != nil {
		_ = os.Remove(name)
	}
	return err
}

// traceEvent is an event of the Trace Event Format: a slice of a track (X), a counter (C) or a name
// (M).
type traceEvent struct {
	Kind     string         `json:"ph"`
	Category string         `json:"cat,omitempty"`
	Name     string         `json:"name"`
	Worker   uint32         `json:"pid"`
	Track    uint32         `json:"tid"`
	Time     micros         `json:"ts"`
	Length   micros         `json:"dur,omitempty"`
	Args     map[string]any `json:"args,omitempty"`
}

// micros are nanoseconds that are written as microseconds, with all digits.
type micros int64

// MarshalJSON implements json.Marshaler.
func (m micros) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "%d.%03d", int64(m)/1000, int64(m)%1000), nil
}

// encodeTrace writes the file, one event on each line.
func encodeTrace(w io.Writer, events []traceEvent) error {
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

// traceOf returns the events of all attempts, worker by worker.
func traceOf(runs []*millracev1.TaskRun) (events []traceEvent) {
	of := map[uint32][]*millracev1.TaskRun{}
	for _, r := range runs {
		of[r.GetWorkerId()] = append(of[r.GetWorkerId()], r)
	}
	for _, id := range slices.Sorted(maps.Keys(of)) {
		w := &workerTrace{id: id, slots: map[uint32]*lanes{}, tracks: map[uint32]string{}}
		for _, r := range slices.Backward(of[id]) {
			w.add(r)
		}
		events = append(events, traceEvent{Kind: "M", Name: "process_name", Worker: id, Args: map[string]any{"name": of[id][0].GetWorker()}})
		for _, track := range slices.Sorted(maps.Keys(w.tracks)) {
			events = append(events,
				traceEvent{Kind: "M", Name: "thread_name", Worker: id, Track: track, Args: map[string]any{"name": w.tracks[track]}},
				traceEvent{Kind: "M", Name: "thread_sort_index", Worker: id, Track: track, Args: map[string]any{"sort_index": track}})
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

// workerTrace collects the events of one worker.
type workerTrace struct {
	id      uint32
	slots   map[uint32]*lanes
	inputs  lanes
	tracks  map[uint32]string // names by number
	events  []traceEvent
	changes []traceChange
}

// traceChange is a change of the counters.
type traceChange struct {
	time    time.Time
	running int
	bytes   uint64
}

// add adds an attempt that ended before those that were added earlier.
func (w *workerTrace) add(r *millracev1.TaskRun) {
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
			w.events = append(w.events, traceEvent{"X", category, name, w.id, track, micros(begin.UnixNano()), micros(max(length, 1)), args})
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
	w.changes = append(w.changes, traceChange{time: called, running: 1}, traceChange{time: called.Add(run), running: -1, bytes: r.GetOutputBytes()})

	fetch, wait := r.GetFetchTime().AsDuration(), r.GetWaitTime().AsDuration()
	if fetch+wait <= 0 {
		return
	}
	first := begin.Add(-fetch - wait)
	input, _ := w.inputs.place(first, begin, 0)
	inputs := uint32(min(input+1, slotTracks-1)) // Perfetto keeps track 0 for the idle thread
	w.tracks[inputs] = fmt.Sprintf("inputs %d", input+1)
	slice(inputs, "fetch", "fetch", first, fetch, map[string]any{"task": task, "bytes": r.GetFetchedBytes()})
	slice(inputs, "wait", "wait for memory", first.Add(fetch), wait, brief)
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
func (w *workerTrace) counters() (events []traceEvent) {
	slices.SortStableFunc(w.changes, func(a, b traceChange) int { return a.time.Compare(b.time) })
	var running int
	var bytes uint64
	for i, c := range w.changes {
		running, bytes = running+c.running, bytes+c.bytes
		if i+1 < len(w.changes) && w.changes[i+1].time.Equal(c.time) {
			continue
		}
		at := micros(c.time.UnixNano())
		events = append(events, traceEvent{Kind: "C", Name: "running tasks", Worker: w.id, Time: at, Args: map[string]any{"tasks": running}})
		if c.bytes > 0 {
			events = append(events, traceEvent{Kind: "C", Name: "results made", Worker: w.id, Time: at, Args: map[string]any{"bytes": bytes}})
		}
	}
	return events
}
