package rpc

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

type watchStream = grpc.ServerStreamingServer[pb.WatchResponse]

// watcher serves one Watch.
type watcher struct {
	*Server
	stream    watchStream
	selection schedapi.Selection
	// untilEnded: the stream ends when no graph of the selection is running any more.
	untilEnded bool
	// revision and catalogRevision are those of the last batches that were sent. mixed: the stream
	// has tasks and catalogue rows.
	revision, catalogRevision uint64
	mixed                     bool
	// lifeSent: the first message, which carries the scheduler's life, was sent.
	lifeSent bool
	updates  updateMessage
	// workerView selects the fields of workers.
	workerView pb.WorkerView
}

func (s *schedulerService) Watch(r *pb.WatchRequest, stream watchStream) error {
	w := &watcher{Server: s.Server, stream: stream, untilEnded: r.GetUntilEnded(), workerView: r.GetWorkerView(), selection: schedapi.Selection{
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

	var tasks schedapi.TaskWatch
	var ready <-chan *schedapi.TaskBatch
	if client != 0 {
		var err error
		if tasks, err = s.scheduler.WatchTasks(ctx, client, r.GetAfterRevision()); err != nil {
			return err
		}
		defer tasks.Close()
		ready = tasks.Ready()
	}
	changes := make(chan schedapi.Changes)
	if !w.selection.Empty() {
		after := r.GetAfterRevision()
		if w.mixed {
			after = 0 // The revision is that of the tasks.
		}
		start, err := w.start(ctx)
		if err != nil {
			return err
		}
		s.streams.Go(func() { streamChanges(ctx, w.scheduler, w.selection, start, after, changes) })
	}
	return w.run(ctx, tasks, ready, changes)
}

// start returns a snapshot that contains everything that was acknowledged so far.
func (w *watcher) start(ctx context.Context) (schedapi.Snapshot, error) {
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

// streamChanges sends changes of the catalogue until ctx ends. While the receiver is slow, changes
// accumulate and are then sent together.
func streamChanges(ctx context.Context, scheduler schedapi.Scheduler, selection schedapi.Selection, snapshot schedapi.Snapshot, after uint64, to chan<- schedapi.Changes) {
	// The first message is sent even if nothing changed: it says that the stream is complete up to
	// its revision.
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

func (w *watcher) run(ctx context.Context, tasks schedapi.TaskWatch, ready <-chan *schedapi.TaskBatch, changes <-chan schedapi.Changes) error {
	if w.mixed {
		if err := w.startMixed(ctx, tasks, ready, changes); err != nil {
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
				return &schedapi.Error{Kind: schedapi.ErrWatchEnded, Message: "the client's lease ended while it was watched: open a new client"}
			}
			err := w.updates.send(batch, w.revision, w.catalogRevision, w.send)
			w.revision = batch.Revision
			tasks.Done(batch)
			if err != nil {
				return err
			}
		case some := <-changes:
			if w.mixed && some.Snapshot {
				return &schedapi.Error{Kind: schedapi.ErrRevisionTooOld, Message: "the stream fell too far behind the catalogue: watch again, for a snapshot"}
			}
			if err := w.sendCatalog(&some); err != nil {
				return err
			}
		case <-w.scheduler.Draining():
			return w.send(&pb.WatchResponse{Draining: true, Revision: w.revision, CatalogRevision: w.catalogRevision})
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// send sends a message, and adds the scheduler's life to the first one.
func (w *watcher) send(message *pb.WatchResponse) error {
	message.Life = 0
	if !w.lifeSent {
		w.lifeSent, message.Life = true, w.scheduler.Cluster().Life
	}
	return w.stream.Send(message)
}

// startMixed begins a stream of tasks and catalogue rows. The catalogue is sent as a whole. If the
// client resumes its tasks and no batch is ready, the catalogue goes alone and the changes of the
// tasks follow; else the first batch of tasks goes with it.
func (w *watcher) startMixed(ctx context.Context, tasks schedapi.TaskWatch, ready <-chan *schedapi.TaskBatch, changes <-chan schedapi.Changes) error {
	var catalog schedapi.Changes
	select {
	case catalog = <-changes:
	case <-ctx.Done():
		return ctx.Err()
	}
	catalog.Snapshot = false // The tasks decide whether it is a snapshot.
	select {
	case batch, open := <-ready:
		if !open {
			return &schedapi.Error{Kind: schedapi.ErrWatchEnded, Message: "the client's lease ended while it was watched: open a new client"}
		}
		catalog.Snapshot = batch.Snapshot
		last, err := w.catalogMessage(&catalog)
		if err == nil {
			w.updates.catalog = last
			err = w.updates.send(batch, w.revision, w.catalogRevision, w.send)
		}
		w.revision = batch.Revision
		tasks.Done(batch)
		return err
	default:
		return w.sendCatalog(&catalog)
	}
}

// watchBytes is the approximate largest size of one message of a stream.
const watchBytes = 8 << 20

// sendCatalog sends changes, in several messages if they are long.
func (w *watcher) sendCatalog(changes *schedapi.Changes) error {
	last, err := w.catalogMessage(changes)
	if err != nil {
		return err
	}
	last.Revision, last.CatalogRevision, last.Snapshot = w.revision, w.catalogRevision, changes.Snapshot
	return w.send(last)
}

// catalogMessage sends all messages of the changes except the last one, which it returns without
// revisions. The messages that it sends carry the old revisions, or none if they are parts of a
// snapshot: if the stream breaks between them, the client resumes from the old revisions.
func (w *watcher) catalogMessage(changes *schedapi.Changes) (*pb.WatchResponse, error) {
	message, bytes := &pb.WatchResponse{}, 0
	var err error
	flush := func() {
		if message.Snapshot = changes.Snapshot; changes.Snapshot {
			message.More = true
		} else {
			message.Revision, message.CatalogRevision = w.revision, w.catalogRevision
		}
		if err == nil {
			err = w.send(message)
		}
		message, bytes = &pb.WatchResponse{}, 0
	}
	room := func(size int) {
		if bytes > 0 && bytes+size > watchBytes {
			flush()
		}
		bytes += size
	}
	for _, g := range changes.Graphs {
		converted := listedGraph(w.stream.Context(), g)
		room(itemBytes + proto.Size(converted))
		message.Graphs = append(message.Graphs, converted)
	}
	for _, worker := range changes.Workers {
		converted := workerTo(worker, w.workerView)
		room(itemBytes + proto.Size(converted))
		message.Workers = append(message.Workers, converted)
	}
	for _, d := range changes.Datasets {
		converted := datasetTo(d)
		room(itemBytes + proto.Size(converted))
		message.Datasets = append(message.Datasets, converted)
	}
	for _, id := range changes.RemovedGraphs {
		room(itemBytes)
		message.RemovedGraphIds = append(message.RemovedGraphIds, uint64(id))
	}
	for _, id := range changes.RemovedWorkers {
		room(itemBytes)
		message.RemovedWorkerIds = append(message.RemovedWorkerIds, uint32(id))
	}
	for _, name := range changes.RemovedDatasets {
		room(itemBytes + len(name))
		message.RemovedDatasetNames = append(message.RemovedDatasetNames, name)
	}
	w.catalogRevision = changes.Revision
	if !w.mixed {
		w.revision = changes.Revision
	}
	return message, err
}

// ended reports whether no watched graph is running any more, as of the revision that was sent
// last.
func (w *watcher) ended() bool {
	snapshot := w.scheduler.LastSnapshot()
	if snapshot.Revision() < w.catalogRevision {
		return false
	}
	running := func(id ids.GraphID) bool {
		graph := snapshot.Graph(id)
		return graph != nil && (graph.State == schedapi.GraphRunning || graph.Revision > w.catalogRevision)
	}
	return !slices.ContainsFunc(w.selection.GraphIDs, running)
}

func unknownGraph(id ids.GraphID) error {
	return &sched.Error{Kind: sched.ErrUnknownGraph, Object: id.String(),
		Message: fmt.Sprintf("there is no graph %d: it was released, or is of another scheduler's life; see ListGraphs", uint64(id))}
}

// updateMessage builds batches of updates and reuses their memory.
type updateMessage struct {
	message pb.WatchResponse
	updates arena[pb.TaskUpdate]
	// catalog holds changes of the catalogue that are sent with the next message.
	catalog *pb.WatchResponse
}

// send sends a batch, in several messages if it is large. All but the last message carry the
// revision before, or none if they are parts of a snapshot.
func (m *updateMessage) send(batch *schedapi.TaskBatch, before, catalogRevision uint64, send func(*pb.WatchResponse) error) error {
	first, bytes := 0, proto.Size(m.catalog)
	for i := range batch.Updates {
		if !batch.Snapshot && batch.Updates[i].Err == nil {
			continue // The loop bounds the results of a batch.
		}
		size := updateBytes(&batch.Updates[i])
		if bytes > 0 && bytes+size > watchBytes {
			part := m.build(batch, first, i, catalogRevision)
			part.Revision = before
			if batch.Snapshot {
				part.Revision, part.CatalogRevision, part.More = 0, 0, true
			}
			if err := send(part); err != nil {
				return err
			}
			first, bytes = i, 0
		}
		bytes += size
	}
	return send(m.build(batch, first, len(batch.Updates), catalogRevision))
}

// updateBytes is an upper bound for the size of an update in a message.
func updateBytes(u *sched.Update) int {
	bytes := itemBytes + len(u.Inline)
	if e := u.Err; e != nil {
		bytes += 2*itemBytes + len(e.Reason) + len(e.Message) + len(e.OriginKey) + len(e.Worker) + len(e.LogTail)
		if detail, ok := errorDetail(e); ok {
			bytes += proto.Size(detail)
		}
	}
	return bytes
}

func (m *updateMessage) build(batch *schedapi.TaskBatch, from, to int, catalogRevision uint64) *pb.WatchResponse {
	m.updates.reset()
	m.message.Tasks = m.message.Tasks[:0]
	for i := from; i < to; i++ {
		update := m.updates.next()
		updateTo(&batch.Updates[i], update)
		m.message.Tasks = append(m.message.Tasks, update)
	}
	m.message.Revision, m.message.CatalogRevision = batch.Revision, catalogRevision
	m.message.Snapshot, m.message.More = batch.Snapshot, false
	m.message.Topics = convertAll(batch.Topics, topicTo)
	b := m.catalog
	m.catalog = nil
	m.message.Graphs, m.message.Workers, m.message.Datasets = b.GetGraphs(), b.GetWorkers(), b.GetDatasets()
	m.message.RemovedGraphIds, m.message.RemovedWorkerIds, m.message.RemovedDatasetNames = b.GetRemovedGraphIds(), b.GetRemovedWorkerIds(), b.GetRemovedDatasetNames()
	return &m.message
}
