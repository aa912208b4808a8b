package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

func (a *app) memory() *cobra.Command {
	cmd := &cobra.Command{
		Use: "memory [WORKER...]", Short: "Show what is in the memory of workers, and what keeps it there",
		Long: `Shows for each worker (or those named) its tiers of memory, the largest objects, what pins them, who waits for room,
and the last objects that came from other workers, with the time that each step took.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd, func(ctx context.Context, c *millrace.Client, _ millracev1.SchedulerServiceClient) error {
				return a.describeMemory(ctx, c, args)
			})
		},
	}
	addCall(cmd)
	addOutput(cmd)
	cmd.Flags().String("task", "", "tell, too, what happened to the result of this task (t12), and why")
	cmd.Flags().Int("limit", 10, "how many of the largest holders and pins of each worker")
	return cmd
}

type workerMemory struct {
	worker *millracev1.Worker
	memory *millracev1.DescribeMemoryResponse
}

func (a *app) describeMemory(ctx context.Context, c *millrace.Client, names []string) error {
	limit := a.settings.Int("limit")
	if limit < 1 || limit > 10000 {
		return usageError{fmt.Errorf("--limit %d: 1 to 10000", limit)}
	}
	var task uint64
	if text := a.settings.String("task"); text != "" {
		var ok bool
		if task, ok = number(text, 't'); !ok {
			return usageError{fmt.Errorf("--task %s: a task's number, as in t12 (get tasks lists them)", text)}
		}
	}
	workers, err := c.Workers(ctx)
	if err != nil {
		return err
	}
	wanted := make(map[string]bool)
	for _, n := range names {
		wanted[n] = true
	}
	var all []workerMemory
	var errs []error
	for _, w := range workers {
		id := fmt.Sprintf("w%d", w.GetWorkerId())
		if len(names) > 0 && !wanted[w.GetName()] && !wanted[id] {
			continue
		}
		delete(wanted, w.GetName())
		delete(wanted, id)
		m, err := c.DescribeMemory(ctx, w, limit, task)
		if err != nil {
			errs = append(errs, fmt.Errorf("worker %s: %w", w.GetName(), err))
			continue
		}
		all = append(all, workerMemory{w, m})
	}
	for name := range wanted {
		errs = append(errs, status.Errorf(codes.NotFound, "there is no worker %q: see `millrace get workers`", name))
	}
	return errors.Join(append(errs, a.printMemory(all))...)
}

func (a *app) printMemory(all []workerMemory) error {
	f, err := a.format()
	if err != nil {
		return err
	}
	if f == "table" || f == "wide" {
		for i, x := range all {
			if i > 0 {
				_, _ = fmt.Fprintln(a.out)
			}
			w := tabwriter.NewWriter(a.out, 0, 8, 2, ' ', 0)
			memoryTable(w, x)
			memoryFetches(w, x)
			memoryHistory(w, x)
			if err := w.Flush(); err != nil {
				return err
			}
		}
		return nil
	}
	if f == "yaml" {
		return usageError{errors.New("-o yaml: memory has table and json")}
	}
	type entry struct {
		Worker string          `json:"worker"`
		Memory json.RawMessage `json:"memory"`
	}
	out := struct {
		Workers []entry `json:"workers"`
	}{Workers: []entry{}}
	for _, x := range all {
		text, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(x.memory)
		if err != nil {
			return err
		}
		out.Workers = append(out.Workers, entry{x.worker.GetName(), text})
	}
	text, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.out, string(text))
	return err
}

// explainMemory asks the worker of a task whether the task waits for memory or for inputs that are
// read back. It returns a text to add to the scheduler's explanation; empty if the task waits for
// neither, or if the worker does not answer.
func explainMemory(ctx context.Context, c *millrace.Client, task *millracev1.Task) string {
	if s := task.GetState(); s != millracev1.TaskState_TASK_STATE_ASSIGNED && s != millracev1.TaskState_TASK_STATE_RUNNING {
		return ""
	}
	workers, err := c.Workers(ctx, millracev1.WorkerState_WORKER_STATE_ACTIVE, millracev1.WorkerState_WORKER_STATE_DRAINING)
	if err != nil {
		return ""
	}
	for _, w := range workers {
		if w.GetName() != task.GetWorker() {
			continue
		}
		if m, err := c.DescribeMemory(ctx, w, 3, 0); err == nil {
			return memoryWait(task.GetTaskId(), m)
		}
	}
	return ""
}

// memoryWait describes the memory, or the inputs from lower tiers, that a task waits for; empty if
// it waits for neither. Reservations that wait come first in m, in the order in which they are
// served, so the index of one is the number of those that are served before it.
func memoryWait(task uint64, m *millracev1.DescribeMemoryResponse) string {
	for before, r := range m.GetReservations() {
		if r.GetOwner().GetTaskId() != task {
			continue
		}
		if r.GetGranted() && r.GetLoadBytes() > 0 {
			return fmt.Sprintf("; %s of its inputs are being read back into the slab", size(r.GetLoadBytes()))
		}
		if r.GetGranted() {
			continue
		}
		var text strings.Builder
		fmt.Fprintf(&text, "; it has waited %v for memory: %s for its result", r.GetAge().AsDuration().Round(time.Millisecond), size(r.GetRequestedBytes()))
		if n := r.GetLoadBytes(); n > 0 {
			fmt.Fprintf(&text, " and %s for inputs that are to be read back", size(n))
		}
		fmt.Fprintf(&text, ", behind %d others", before)
		for _, t := range m.GetTiers() {
			fmt.Fprintf(&text, "; %s: %s of %s in use", t.GetName(), size(t.GetUsedBytes()), size(t.GetSizeBytes()))
			if f := t.GetFailure(); f != "" {
				text.WriteString(", which fails: " + f)
			}
		}
		for i, h := range m.GetLargest() {
			who := ownerName(h.GetOwner())
			if h.GetReservationId() == 0 {
				who = fmt.Sprintf("the result of t%d", h.GetTaskId())
			}
			lead := ", "
			if i == 0 {
				lead = "; most is held by "
			}
			fmt.Fprintf(&text, "%s%s (%s)", lead, who, size(h.GetTierBytes()[0]))
		}
		return text.String()
	}
	return ""
}

func memoryTable(w io.Writer, x workerMemory) {
	m := x.memory
	_, _ = fmt.Fprintf(w, "%s (w%d): %s of %s beside the tiers, %s resident without the slab\n",
		plain(x.worker.GetName()), x.worker.GetWorkerId(), several(int(m.GetSmallObjectCount()), "small object"), size(m.GetSmallObjectBytes()), size(m.GetRssBytes()))
	row(w, "TIER", "SIZE", "USED", "LARGEST FREE", "OBJECTS", "ALSO BELOW", "EVICTABLE", "LEAVING", "COMING", "WRITTEN", "READ", "STATE")
	for _, t := range m.GetTiers() {
		state := "ok"
		if t.GetFailure() != "" {
			state = t.GetFailure()
		}
		row(w, t.GetName(), size(t.GetSizeBytes()), size(t.GetUsedBytes()), size(t.GetLargestFreeBytes()), size(t.GetObjectBytes()), size(t.GetCleanBytes()),
			size(t.GetEvictableBytes()), size(t.GetLeavingBytes()), size(t.GetComingBytes()), size(t.GetWrittenBytes()), size(t.GetReadBytes()), state)
	}
	var tiers []string
	for _, t := range m.GetTiers() {
		tiers = append(tiers, "IN "+strings.ToUpper(t.GetName()))
	}
	order := usesInOrder(m)
	for _, list := range []struct {
		title    string
		holdings []*millracev1.MemoryHolding
	}{{"LARGEST", m.GetLargest()}, {"PINNED", m.GetPinned()}} {
		if len(list.holdings) == 0 {
			continue
		}
		row(w, "")
		row(w, anys(slices.Concat([]string{list.title}, tiers, []string{"STATE", "NEXT USE", "KEPT BY"}))...)
		for _, h := range list.holdings {
			name, state := fmt.Sprintf("t%d/a%d", h.GetTaskId(), h.GetGeneration()), strings.ToLower(short(h.GetState(), "OBJECT_STATE_"))
			if h.GetReservationId() != 0 {
				name, state = fmt.Sprintf("reservation %d of %s", h.GetReservationId(), ownerName(h.GetOwner())), "set aside"
			}
			if h.GetCopy() {
				state += " copy"
			}
			cells := []any{name}
			for _, n := range h.GetTierBytes() {
				cells = append(cells, size(n))
			}
			row(w, append(cells, state, nextUse(h, order), keptBy(h))...)
		}
	}
	if len(m.GetReservations()) > 0 {
		row(w, "")
		row(w, "RESERVATION", "OF", "BYTES", "TO READ BACK", "STATE", "AGE")
	}
	for _, r := range m.GetReservations() {
		state := "waits"
		if r.GetUrgent() {
			state = "waits, urgent"
		}
		if r.GetGranted() {
			state = "granted"
		}
		row(w, r.GetReservationId(), ownerName(r.GetOwner()), size(r.GetRequestedBytes()), size(r.GetLoadBytes()), state, r.GetAge().AsDuration().Round(time.Millisecond).String())
	}
}

// memoryFetches prints the last fetches of a worker from others. Each time counts from the order of
// the fetch.
func memoryFetches(w io.Writer, x workerMemory) {
	if len(x.memory.GetFetches()) > 0 {
		row(w, "")
		row(w, "FETCHED", "OBJECTS", "BYTES", "FROM", "BEGUN AFTER", "PLACED", "ARRIVED", "USABLE")
	}
	for _, f := range x.memory.GetFetches() {
		cells := []any{fmt.Sprintf("t%d/a%d", f.GetTaskId(), f.GetGeneration()), f.GetObjectCount(), size(f.GetObjectBytes()), fmt.Sprintf("w%d", f.GetPeerWorkerId())}
		if by := f.GetReadByTaskId(); by != 0 {
			row(w, append(cells, fmt.Sprintf("read in place by t%d", by), "-", "-", f.GetUsableAfter().AsDuration().Round(time.Microsecond).String())...)
			continue
		}
		for _, after := range []*durationpb.Duration{f.GetBegunAfter(), f.GetPlacedAfter(), f.GetArrivedAfter(), f.GetUsableAfter()} {
			cells = append(cells, after.AsDuration().Round(time.Microsecond).String())
		}
		row(w, cells...)
	}
}

func memoryHistory(w io.Writer, x workerMemory) {
	for _, line := range x.memory.GetHistory() {
		row(w, line)
	}
}

// ownerName names the owner of a reservation, as in "t42" or "executor 1".
func ownerName(o *millracev1.MemoryOwner) string {
	switch owner := o.GetOwner().(type) {
	case *millracev1.MemoryOwner_TaskId:
		return fmt.Sprintf("t%d", owner.TaskId)
	case *millracev1.MemoryOwner_WorkerId:
		return fmt.Sprintf("w%d", owner.WorkerId)
	case *millracev1.MemoryOwner_WrittenTaskId:
		return fmt.Sprintf("a client that writes t%d", owner.WrittenTaskId)
	case *millracev1.MemoryOwner_ExecutorSlot:
		return fmt.Sprintf("executor %d", owner.ExecutorSlot)
	}
	return "unknown"
}

// usesInOrder returns the ranks of the tasks that use the listed objects next, lowest first and
// without repetition. Only the order of ranks has a meaning, so users see positions in this list.
func usesInOrder(m *millracev1.DescribeMemoryResponse) []uint64 {
	var ranks []uint64
	for _, h := range slices.Concat(m.GetLargest(), m.GetPinned()) {
		if use, ok := h.GetUse().(*millracev1.MemoryHolding_NextRank); ok {
			ranks = append(ranks, use.NextRank)
		}
	}
	slices.Sort(ranks)
	return slices.Compact(ranks)
}

// nextUse returns the position of an object in the order of next uses ("1st"), or the reason why it
// has none.
func nextUse(h *millracev1.MemoryHolding, order []uint64) string {
	switch use := h.GetUse().(type) {
	case *millracev1.MemoryHolding_NextRank:
		at, _ := slices.BinarySearch(order, use.NextRank)
		return humanize.Ordinal(at + 1)
	case *millracev1.MemoryHolding_NextUse:
		return strings.ToLower(short(use.NextUse, "NEXT_USE_"))
	}
	return "-"
}

func keptBy(h *millracev1.MemoryHolding) string {
	kept := h.GetPins()
	if n := h.GetLeaseCount(); n > 0 {
		kept = append(kept, fmt.Sprintf("%d read leases", n))
	}
	if len(kept) == 0 {
		return "-"
	}
	return strings.Join(kept, ", ")
}
