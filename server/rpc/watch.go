package rpc

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/front"
	"github.com/millrace/millrace/server/sched"
)

type watchStream = grpc.ServerStreamingServer[pb.WatchResponse]

// watcher serves one Watch.
type watcher struct {
	*Server
	stream    watchStream
	selection front.Selection
	// untilEnded: the stream ends when no graph of the selection runs any more.
	untilEnded bool
	// revisions of the last batches.
	revision, catalogRevision uint64
	mixed                     bool
	// greeted: the first message was sent, which carries the scheduler's life.
	greeted bool
	updates updateMessage
}

func (s *schedulerService) Watch(r *pb.WatchRequest, stream watchStream) error {
	w := &watcher{Server: s.Server, stream: stream, untilEnded: r.GetUntilEnded(), selection: front.Selection{
		Graphs:   r.GetGraphs() || len(r.GetGraphIds()) > 0,
		GraphIDs: convertAll(r.GetGraphIds(), number[ids.GraphID, uint64]),
		Workers:  r.GetWorkers(), Datasets: r.GetDatasets(),
	}}
	client := ids.ClientID(r.GetClientId())
	if life := s.scheduler.Cluster().Life; r.GetLife() != 0 && r.GetLife() != life {
		return &sched.Error{Kind: sched.ErrUnknownClient, Object: client.String(), Message: fmt.Sprintf(
			"client %d and revision %d are from another life of the scheduler, %x; this one is %x: open a new client and submit again",
			uint64(client), r.GetAfterRevision(), r.GetLife(), life)}
	}
	w.mixed = client != 0 && !w.selection.Empty()
	if client == 0 && w.selection.Empty() {
		return invalid("client_id", "nothing is watched: set it, or graphs, workers or datasets")
	}
	if w.untilEnded && len(w.selection.GraphIDs) == 0 {
		return invalid("until_ended", "it needs graph_ids: which graphs should have ended")
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()

	var tasks front.TaskWatch
	var ready <-chan *front.TaskBatch
	if client != 0 {
		var err error
		if tasks, err = s.scheduler.WatchTasks(ctx, client, r.GetAfterRevision()); err != nil {
			return err
		}
		defer tasks.Close()
		ready = tasks.Ready()
	}
	changes := make(chan front.Changes)
	if !w.selection.Empty() {
		after := r.GetAfterRevision()
		if w.mixed {
			after = 0 // The revision is that of the tasks.
		}
		start, err := w.start(ctx)
		if err != nil {
			return err
		}
		s.streams.Go(func() { follow(ctx, w.scheduler, w.selection, start, after, changes) })
	}
	return w.run(ctx, tasks, ready, changes)
}

// start returns a snapshot in which everything that was acknowledged so far is visible.
func (w *watcher) start(ctx context.Context) (front.Snapshot, error) {
	snapshot, err := w.scheduler.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	for _, id := range w.selection.GraphIDs {
		if snapshot.Graph(id) == nil {
			return nil, unknownGraph(id)
		}
	}
	return snapshot, nil
}

// follow sends changes of the catalogue until ctx ends. While the receiver is slow changes gather.
func follow(ctx context.Context, scheduler front.Scheduler, selection front.Selection, snapshot front.Snapshot, after uint64, to chan<- front.Changes) {
	// The first message comes even if nothing changed: it tells that the stream is complete up to its revision.
	for first := true; ; first = false {
		changes := snapshot.Changes(selection, after)
		after = changes.Revision
		if first || !changes.Empty() {
			select {
			case to <- changes:
			case <-ctx.Done():
				return
			}
		}
		if snapshot.Wait(ctx, selection) != nil {
			return
		}
		snapshot = scheduler.LastSnapshot()
	}
}

func (w *watcher) run(ctx context.Context, tasks front.TaskWatch, ready <-chan *front.TaskBatch, changes <-chan front.Changes) error {
	if w.mixed {
		if err := w.both(ctx, tasks, ready, changes); err != nil {
			return err
		}
	}
	for {
		if w.untilEnded && w.catalogRevision > 0 && w.ended() {
			return nil
		}
		select {
		case batch, open := <-ready:
			if !open {
				return &front.Error{Kind: front.ErrWatchEnded, Message: "the client's lease ended while it was watched: open a new client"}
			}
			err := w.updates.send(batch, w.revision, w.catalogRevision, w.send)
			w.revision = batch.Revision
			tasks.Done(batch)
			if err != nil {
				return err
			}
		case some := <-changes:
			if w.mixed && some.Snapshot {
				return &front.Error{Kind: front.ErrRevisionTooOld, Message: "the stream fell too far behind the catalogue: watch again, for a snapshot"}
			}
			if err := w.send(w.catalogMessage(&some)); err != nil {
				return err
			}
		case <-w.scheduler.Draining():
			return w.send(&pb.WatchResponse{Draining: true, Revision: w.revision, CatalogRevision: w.catalogRevision})
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// send sends a message, the first one with the scheduler's life.
func (w *watcher) send(message *pb.WatchResponse) error {
	message.Life = 0
	if !w.greeted {
		w.greeted, message.Life = true, w.scheduler.Cluster().Life
	}
	return w.stream.Send(message)
}

// both sends the first message of a stream of tasks and of catalogue resources. The catalogue comes whole; the tasks do
// too unless they are resumed, and then their changes follow.
func (w *watcher) both(ctx context.Context, tasks front.TaskWatch, ready <-chan *front.TaskBatch, changes <-chan front.Changes) error {
	var catalog front.Changes
	select {
	case catalog = <-changes:
	case <-ctx.Done():
		return ctx.Err()
	}
	message := w.catalogMessage(&catalog)
	message.Snapshot = false
	select {
	case batch, open := <-ready:
		if !open {
			return &front.Error{Kind: front.ErrWatchEnded, Message: "the client's lease ended while it was watched: open a new client"}
		}
		first := w.updates.build(batch, 0, len(batch.Updates), w.catalogRevision)
		message.Tasks, message.Snapshot, message.Revision = first.Tasks, batch.Snapshot, batch.Revision
		w.revision = batch.Revision
		err := w.send(message)
		tasks.Done(batch)
		return err
	default:
		return w.send(message)
	}
}

func (w *watcher) catalogMessage(changes *front.Changes) *pb.WatchResponse {
	w.catalogRevision = changes.Revision
	if !w.mixed {
		w.revision = changes.Revision
	}
	return &pb.WatchResponse{
		Revision: w.revision, CatalogRevision: w.catalogRevision, Snapshot: changes.Snapshot,
		Graphs: convertAll(changes.Graphs, graphTo), Workers: convertAll(changes.Workers, workerTo),
		Datasets:            convertAll(changes.Datasets, datasetTo),
		RemovedGraphIds:     convertAll(changes.RemovedGraphs, number[uint64, ids.GraphID]),
		RemovedWorkerIds:    convertAll(changes.RemovedWorkers, number[uint32, ids.WorkerID]),
		RemovedDatasetNames: changes.RemovedDatasets,
	}
}

// ended says that no watched graph runs any more, as of what was sent.
func (w *watcher) ended() bool {
	snapshot := w.scheduler.LastSnapshot()
	if snapshot.Revision() < w.catalogRevision {
		return false
	}
	running := func(id ids.GraphID) bool {
		graph := snapshot.Graph(id)
		return graph != nil && (graph.State == front.GraphRunning || graph.Revision > w.catalogRevision)
	}
	return !slices.ContainsFunc(w.selection.GraphIDs, running)
}

func unknownGraph(id ids.GraphID) error {
	return &sched.Error{Kind: sched.ErrUnknownGraph, Object: id.String(),
		Message: fmt.Sprintf("there is no graph %d: it was released, or is of another scheduler's life; see ListGraphs", uint64(id))}
}

// updateMessage builds batches of updates in memory that is used again.
type updateMessage struct {
	message pb.WatchResponse
	updates slab[pb.TaskUpdate]
}

// send sends a batch, in several messages if what tasks failed with is large: those before the last carry the revision
// before. A snapshot must be one message: it leaves out tracebacks and exceptions beyond the size.
func (m *updateMessage) send(batch *front.TaskBatch, before, catalogRevision uint64, send func(*pb.WatchResponse) error) error {
	first, bytes := 0, 0
	for i := range batch.Updates {
		detail, ok := errorDetail(batch.Updates[i].Err)
		if !ok || batch.Snapshot {
			continue
		}
		if bytes += proto.Size(detail); bytes > messageBytes && i > first {
			part := m.build(batch, first, i, catalogRevision)
			part.Revision = before
			if err := send(part); err != nil {
				return err
			}
			first, bytes = i, 0
		}
	}
	return send(m.build(batch, first, len(batch.Updates), catalogRevision))
}

func (m *updateMessage) build(batch *front.TaskBatch, from, to int, catalogRevision uint64) *pb.WatchResponse {
	m.updates.reset()
	m.message.Tasks = m.message.Tasks[:0]
	bytes := 0
	for i := from; i < to; i++ {
		update := m.updates.next()
		updateTo(&batch.Updates[i], update)
		if detail, ok := errorDetail(batch.Updates[i].Err); ok && batch.Snapshot {
			if bytes += proto.Size(detail); bytes > messageBytes {
				update.Error.Exception, update.Error.Traceback = nil, ""
			}
		}
		m.message.Tasks = append(m.message.Tasks, update)
	}
	m.message.Revision, m.message.CatalogRevision = batch.Revision, catalogRevision
	m.message.Snapshot = batch.Snapshot
	return &m.message
}
