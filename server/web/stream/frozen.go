package stream

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// frozenRuns bounds the runs in a Frozen.
const frozenRuns = 50_000

// Frozen is what a viewer of all topics would know, of a part of the time, as JSON.
type Frozen struct {
	// Topics are the snapshots by the names of their topics, without that of runs.
	Topics map[string]json.RawMessage
	// Runs is an answer of ServeRuns, and Samples one of ServeSamples.
	Runs, Samples json.RawMessage
	// Graphs are those that ran in the time, newest first.
	Graphs []ids.GraphID
	// RunsByOp is the sum of the run times.
	RunsByOp map[string]time.Duration
}

// Freeze reads the scheduler once. Runs and graphs are those of the time.
func (h *Hub) Freeze(ctx context.Context, start, end time.Time) (*Frozen, error) {
	now := time.Now()
	f := &Frozen{Topics: map[string]json.RawMessage{}, RunsByOp: map[string]time.Duration{}}
	sum := newSummary(h.config)
	var err error
	if sum.figures, err = read(h.scheduler, now, &routeSums{}); err != nil {
		return nil, err
	}
	sum.rss = residentBytes()
	f.Topics["summary"] = content(sum.update(now))
	f.Topics["alarms"] = content((&alarms{source: h.config.Alarms}).update(now))
	f.Topics["events"] = content(encodeEvents(true, h.scheduler.Events(0)))
	f.Topics["workers"] = content(topicOf(newWorkers(h.config), now))
	f.Topics["routes"] = content(topicOf(newRoutes(h.scheduler), now))
	f.Topics["clients"] = content(topicOf(newClients(h.config), now))
	f.Topics["datasets"] = content(topicOf(newDatasets(h.config), now))
	f.Topics["graphs"] = h.freezeGraphs(f, start, end)
	found, err := h.runsBetween(ctx, start, end)
	if err != nil {
		return nil, err
	}
	for i := range found {
		f.RunsByOp[found[i].Op] += found[i].RunTime
	}
	f.Runs = append(new(runEncoder).appendTo([]byte("{"), found, h.scheduler.Cluster().StartedAt, true), '}')
	f.Samples = h.samples.encode(seconds(start), seconds(end))
	return f, nil
}

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

// topicOf returns the snapshot of a topic that nobody has read yet.
func topicOf(t topic, now time.Time) *event {
	t.update(now)
	return t.snapshot(nil)
}

// content returns the JSON in an event.
func content(e *event) json.RawMessage {
	if e == nil {
		return json.RawMessage("{}") // The loop has stopped.
	}
	_, data, _ := bytes.Cut(e.data, []byte("\ndata: "))
	return bytes.TrimSpace(data)
}

// freezeGraphs encodes the graphs that ran between two times.
func (h *Hub) freezeGraphs(f *Frozen, start, end time.Time) json.RawMessage {
	rows := newGraphs(h.config).table
	for _, g := range h.scheduler.LastSnapshot().Changes(schedapi.Selection{Graphs: true}, 0).Graphs {
		if g.CreatedAt.After(end) || !g.EndedAt.IsZero() && g.EndedAt.Before(start) {
			continue
		}
		rows.put(g.ID, h.config.Rows.Graph(g))
		f.Graphs = append(f.Graphs, g.ID)
	}
	slices.SortFunc(f.Graphs, func(a, b ids.GraphID) int { return cmp.Compare(b, a) })
	return content(rows.snapshot(nil))
}

// runsBetween returns the runs that overlap with a time, newest first.
func (h *Hub) runsBetween(ctx context.Context, start, end time.Time) (found []sched.Run, err error) {
	for before, more := uint64(0), true; more && len(found) < frozenRuns; more = before != 0 {
		var some []sched.Run
		err := h.scheduler.Read(ctx, func(r schedapi.Reader) { some, before = r.RunsBefore(before, eventRuns, sched.RunFilter{}) })
		if err != nil {
			return nil, err
		}
		for i := range some {
			if some[i].End.Before(start) {
				return found, nil // Runs are in the order of their ends.
			}
			if some[i].End.Add(-some[i].RunTime).Before(end) {
				found = append(found, some[i])
			}
		}
	}
	return found[:min(len(found), frozenRuns)], nil
}
