package schedapi

import (
	"context"

	"github.com/millrace/millrace/internal/ids"
)

// Snapshot is a consistent, immutable view of the catalogue. Its rows must not be modified.
type Snapshot interface {
	// Revision is that of the last change in the snapshot.
	Revision() uint64

	// Graph and the other lookups return nil if there is no such row.
	Graph(ids.GraphID) *Graph
	Worker(ids.WorkerID) *Worker
	// WorkerByName returns the newest incarnation of a name.
	WorkerByName(name string) *Worker
	Client(ids.ClientID) *Client
	Dataset(namespace, name string) *Dataset

	// Graphs and the other lists return up to limit rows after the given one, and whether there are
	// more.
	Graphs(filter GraphFilter, after ids.GraphID, limit int) ([]*Graph, bool)
	// Workers without states returns all workers but the lost ones.
	Workers(states []WorkerState, after ids.WorkerID, limit int) ([]*Worker, bool)
	Clients(after ids.ClientID, limit int) ([]*Client, bool)
	// Datasets are ordered by namespace and name; an empty namespace means all.
	Datasets(namespace, afterNamespace, afterName string, limit int) ([]*Dataset, bool)

	// Changes returns the rows that changed after a revision. If the revision is 0, of another
	// life, or older than the oldest removal that is remembered, it returns a snapshot of all rows.
	Changes(selection Selection, after uint64) Changes
	// Wait returns when a change after this snapshot touched a selected kind, or when ctx ends. It
	// may return without a selected change, but it never misses one.
	Wait(ctx context.Context, selection Selection) error
}

// GraphFilter selects graphs; zero fields select all.
type GraphFilter struct {
	States    []GraphState
	Namespace string
	Client    ids.ClientID
}

// Selection lists the rows that a watcher wants.
type Selection struct {
	Graphs bool
	// GraphIDs restricts Graphs to these graphs; empty: all.
	GraphIDs []ids.GraphID
	Workers  bool
	Datasets bool
}

// Empty reports whether nothing is selected.
func (s Selection) Empty() bool { return !s.Graphs && !s.Workers && !s.Datasets }

// Changes holds the selected rows that changed after an earlier revision.
type Changes struct {
	// Revision to resume after.
	Revision uint64
	// Snapshot says that the rows are all that exist, not only the changed ones.
	Snapshot        bool
	Graphs          []*Graph
	Workers         []*Worker
	Datasets        []*Dataset
	RemovedGraphs   []ids.GraphID
	RemovedWorkers  []ids.WorkerID
	RemovedDatasets []string
}

// Empty reports whether there is no change to send.
func (c *Changes) Empty() bool {
	return !c.Snapshot && len(c.Graphs)+len(c.Workers)+len(c.Datasets)+
		len(c.RemovedGraphs)+len(c.RemovedWorkers)+len(c.RemovedDatasets) == 0
}
