package catalog

import (
	"slices"

	"github.com/hashicorp/go-memdb"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/schedapi"
)

// Snapshot is a consistent view of all tables as of one revision. Several goroutines may use it.
type Snapshot struct {
	txn  *memdb.Txn
	head *head
}

// Revision is that of the last commit in the snapshot.
func (s Snapshot) Revision() uint64 { return s.head.revision }

// Graph returns one graph, or nil.
func (s Snapshot) Graph(id ids.GraphID) *schedapi.Graph {
	return first[*schedapi.Graph](s, tableGraph, number(uint64(id)))
}

// Worker returns one worker incarnation, or nil.
func (s Snapshot) Worker(id ids.WorkerID) *schedapi.Worker {
	return first[*schedapi.Worker](s, tableWorker, number(uint64(id)))
}

// WorkerByName returns the newest incarnation of a name, or nil.
func (s Snapshot) WorkerByName(name string) *schedapi.Worker {
	row, err := s.txn.Last(tableWorker, indexName, text(name))
	must(err)
	found, _ := row.(*schedapi.Worker)
	return found
}

// Client returns one client lease, or nil.
func (s Snapshot) Client(id ids.ClientID) *schedapi.Client {
	return first[*schedapi.Client](s, tableClient, number(uint64(id)))
}

// Dataset returns one dataset, or nil.
func (s Snapshot) Dataset(namespace, name string) *schedapi.Dataset {
	return first[*schedapi.Dataset](s, tableDataset, text(namespace, name))
}

// Graphs returns up to limit graphs with ids above after, oldest first, and whether there are more.
func (s Snapshot) Graphs(filter schedapi.GraphFilter, after ids.GraphID, limit int) ([]*schedapi.Graph, bool) {
	return page(s, tableGraph, number(uint64(after)+1), limit, func(g *schedapi.Graph) bool {
		return (len(filter.States) == 0 || slices.Contains(filter.States, g.State)) &&
			(filter.Namespace == "" || filter.Namespace == g.Namespace) &&
			(filter.Client == 0 || filter.Client == g.Client)
	})
}

// Workers returns up to limit workers with ids above after, and whether there are more. Without
// states it returns all workers but the lost ones.
func (s Snapshot) Workers(states []schedapi.WorkerState, after ids.WorkerID, limit int) ([]*schedapi.Worker, bool) {
	return page(s, tableWorker, number(uint64(after)+1), limit, func(w *schedapi.Worker) bool {
		if len(states) == 0 {
			return w.State != schedapi.WorkerLost
		}
		return slices.Contains(states, w.State)
	})
}

// Clients returns up to limit clients with ids above after, and whether there are more.
func (s Snapshot) Clients(after ids.ClientID, limit int) ([]*schedapi.Client, bool) {
	return page(s, tableClient, number(uint64(after)+1), limit, func(*schedapi.Client) bool { return true })
}

// Datasets returns up to limit datasets after the named one (empty: from the first), ordered by
// namespace and name, and whether there are more. An empty namespace means all.
func (s Snapshot) Datasets(namespace, afterNamespace, afterName string, limit int) ([]*schedapi.Dataset, bool) {
	var from []byte
	if afterName != "" {
		// The key ends with a zero byte: one more byte gives the next possible key.
		from = append(text(afterNamespace, afterName), 0)
	}
	return page(s, tableDataset, from, limit, func(d *schedapi.Dataset) bool {
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
