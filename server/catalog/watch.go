package catalog

import (
	"context"
	"slices"

	"github.com/hashicorp/go-memdb"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/schedapi"
)

// Changes returns the selected rows that changed after a revision. If the revision is 0, of another
// life of the scheduler, or older than the oldest removal that is remembered, it returns a snapshot
// of all selected rows.
func (s Snapshot) Changes(selection schedapi.Selection, after uint64) schedapi.Changes {
	changes := schedapi.Changes{Revision: s.head.revision, Snapshot: after < s.head.floor || after > s.head.revision}
	if changes.Snapshot {
		after = 0
	}
	if selection.Graphs {
		changes.Graphs = since[*schedapi.Graph](s, tableGraph, after)
		if len(selection.GraphIDs) > 0 {
			changes.Graphs = slices.DeleteFunc(changes.Graphs, func(g *schedapi.Graph) bool {
				return !slices.Contains(selection.GraphIDs, g.ID)
			})
		}
	}
	if selection.Workers {
		changes.Workers = since[*schedapi.Worker](s, tableWorker, after)
	}
	if selection.Datasets {
		changes.Datasets = since[*schedapi.Dataset](s, tableDataset, after)
	}
	if !changes.Snapshot {
		s.removals(selection, after, &changes)
	}
	return changes
}

// removals adds the rows that were removed after a revision and do not exist again.
func (s Snapshot) removals(selection schedapi.Selection, after uint64, changes *schedapi.Changes) {
	for _, stone := range since[*tombstone](s, tableTombstone, after) {
		switch stone.table {
		case tableGraph:
			id := ids.GraphID(stone.number)
			wanted := len(selection.GraphIDs) == 0 || slices.Contains(selection.GraphIDs, id)
			if selection.Graphs && wanted && s.Graph(id) == nil {
				changes.RemovedGraphs = append(changes.RemovedGraphs, id)
			}
		case tableWorker:
			if id := ids.WorkerID(stone.number); selection.Workers && s.Worker(id) == nil {
				changes.RemovedWorkers = append(changes.RemovedWorkers, id)
			}
		case tableDataset:
			if selection.Datasets && s.Dataset(stone.namespace, stone.name) == nil {
				changes.RemovedDatasets = append(changes.RemovedDatasets, stone.name)
			}
		}
	}
}

// Wait returns when a commit after this snapshot touched a selected table, or when ctx ends. It may
// return without a selected change, but it never misses one.
func (s Snapshot) Wait(ctx context.Context, selection schedapi.Selection) error {
	changed := memdb.NewWatchSet()
	for table, wanted := range map[string]bool{
		tableGraph: selection.Graphs, tableWorker: selection.Workers, tableDataset: selection.Datasets,
	} {
		if !wanted {
			continue
		}
		rows, err := s.txn.Get(table, indexID)
		must(err)
		changed.Add(rows.WatchCh())
	}
	return changed.WatchCtx(ctx)
}

// since returns the rows of a table that changed after a revision, by revision, and within a
// revision by id.
func since[R any](s Snapshot, table string, after uint64) []R {
	rows, err := s.txn.LowerBound(table, indexRevision, number(after+1))
	must(err)
	var found []R
	for row := rows.Next(); row != nil; row = rows.Next() {
		found = append(found, row.(R))
	}
	return found
}
