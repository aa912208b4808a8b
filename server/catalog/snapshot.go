package catalog

import (
	"slices"

	"github.com/hashicorp/go-memdb"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/front"
)

// Snapshot is a consistent view of all tables as of one revision. Several goroutines may use it.
type Snapshot struct {
	txn  *memdb.Txn
	head *head
}

// Revision is that of the last commit in the snapshot.
func (s Snapshot) Revision() uint64 { return s.head.revision }

// Graph returns one graph, or nil.
func (s Snapshot) Graph(id ids.GraphID) *front.Graph {
	return first[*front.Graph](s, tableGraph, number(uint64(id)))
}

// Worker returns one worker incarnation, or nil.
func (s Snapshot) Worker(id ids.WorkerID) *front.Worker {
	return first[*front.Worker](s, tableWorker, number(uint64(id)))
}

// WorkerByName returns the newest incarnation of a name, or nil.
func (s Snapshot) WorkerByName(name string) *front.Worker {
	row, err := s.txn.Last(tableWorker, indexName, text(name))
	must(err)
	found, _ := row.(*front.Worker)
	return found
}

// Client returns one client lease, or nil.
func (s Snapshot) Client(id ids.ClientID) *front.Client {
	return first[*front.Client](s, tableClient, number(uint64(id)))
}

// Dataset returns one dataset, or nil.
func (s Snapshot) Dataset(namespace, name string) *front.Dataset {
	return first[*front.Dataset](s, tableDataset, text(namespace, name))
}

// Graphs returns up to limit graphs with ids above after, oldest first, and whether there are more.
func (s Snapshot) Graphs(filter front.GraphFilter, after ids.GraphID, limit int) ([]*front.Graph, bool) {
	return page(s, tableGraph, number(uint64(after)+1), limit, func(g *front.Graph) bool {
		return (len(filter.States) == 0 || slices.Contains(filter.States, g.State)) &&
			(filter.Namespace == "" || filter.Namespace == g.Namespace) &&
			(filter.Client == 0 || filter.Client == g.Client)
	})
}

// Workers returns up to limit workers with ids above after, and whether there are more. Without
// states it returns all workers but the lost ones.
func (s Snapshot) Workers(states []front.WorkerState, after ids.WorkerID, limit int) ([]*front.Worker, bool) {
	return page(s, tableWorker, number(uint64(after)+1), limit, func(w *front.Worker) bool {
		if len(states) == 0 {
			return w.State != front.WorkerLost
		}
		return slices.Contains(states, w.State)
	})
}

// Clients returns up to limit clients with ids above after, and whether there are more.
func (s Snapshot) Clients(after ids.ClientID, limit int) ([]*front.Client, bool) {
	return page(s, tableClient, number(uint64(after)+1), limit, func(*front.Client) bool { return true })
}

// Datasets returns up to limit datasets after the named one (empty: from the first), ordered by
// namespace and name, and whether there are more. An empty namespace means all.
func (s Snapshot) Datasets(namespace, afterNamespace, afterName string, limit int) ([]*front.Dataset, bool) {
	var from []byte
	if afterName != "" {
		// The key ends with a zero byte: one more byte gives the next possible key.
		from = append(text(afterNamespace, afterName), 0)
	}
	return page(s, tableDataset, from, limit, func(d *front.Dataset) bool {
		return namespace == "" || namespace == d.Namespace
	})
}

func first[R any](s Snapshot, table string, key []byte) R {
	row, err := s.txn.First(table, indexID, key)
	must(err)
	found, _ := row.(R)
	return found
}

// page collects up to limit rows that keep accepts, with keys from the given one on.
func page[R any](s Snapshot, table string, from []byte, limit int, keep func(R) bool) ([]R, bool) {
	rows, err := s.txn.LowerBound(table, indexID, from)
	must(err)
	var found []R
	for row := rows.Next(); row != nil; row = rows.Next() {
		candidate := row.(R)
		if !keep(candidate) {
			continue
		}
		if len(found) == limit {
			return found, true
		}
		found = append(found, candidate)
	}
	return found, false
}
