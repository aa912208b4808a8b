package front

import (
	"context"

	"github.com/millrace/millrace/internal/ids"
)

// Snapshot is a consistent, unchanging view of what is listed and watched. Rows in it must not be modified.
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

	// Graphs and the other lists return up to limit rows after the one given, and whether there are more.
	Graphs(filter GraphFilter, after ids.GraphID, limit int) ([]*Graph, bool)
	// Workers without states are all but the lost.
	Workers(states []WorkerState, after ids.WorkerID, limit int) ([]*Worker, bool)
	Clients(after ids.ClientID, limit int) ([]*Client, bool)
	// Datasets are ordered by namespace and name; an empty namespace means all.
	Datasets(namespace, afterNamespace, afterName string, limit int) ([]*Dataset, bool)

	// Changes returns what changed after a revision. A revision of 0, one of another life, or one from before the
	// removals that are remembered, gives a snapshot.
	Changes(selection Selection, after uint64) Changes
	// Wait returns when a change after this snapshot touched a selected kind, or when ctx ends. A wake-up without a
	// selected change is possible; a change without a wake-up is not.
	Wait(ctx context.Context, selection Selection) error
}

// GraphFilter selects graphs; zero fields select all.
type GraphFilter struct {
	States    []GraphState
	Namespace string
	Client    ids.ClientID
}

// Selection says which rows a watcher wants.
type Selection struct {
	Graphs bool
	// GraphIDs restricts Graphs, if there are any.
	GraphIDs []ids.GraphID
	Workers  bool
	Datasets bool
}

// Empty says that nothing is selected.
func (s Selection) Empty() bool { return !s.Graphs && !s.Workers && !s.Datasets }

// Changes are the selected rows that differ from those as of an earlier revision.
type Changes struct {
	// Revision to resume after.
	Revision uint64
	// Snapshot says that the rows are everything that exists, not only what changed.
	Snapshot        bool
	Graphs          []*Graph
	Workers         []*Worker
	Datasets        []*Dataset
	RemovedGraphs   []ids.GraphID
	RemovedWorkers  []ids.WorkerID
	RemovedDatasets []string
}

// Empty says that there is nothing to tell.
func (c *Changes) Empty() bool {
	return !c.Snapshot && len(c.Graphs)+len(c.Workers)+len(c.Datasets)+
		len(c.RemovedGraphs)+len(c.RemovedWorkers)+len(c.RemovedDatasets) == 0
}
