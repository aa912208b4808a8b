// Package catalog is an Adapter over go-memdb, which no other package imports. It holds the typed
// tables of the rows that clients list and watch: graphs with their summaries per op, workers,
// clients and datasets. Tasks are not in it, because a row per task would cost more than the task.
//
// One goroutine at a time writes, in batches; each commit is one revision. All goroutines may read
// snapshots, which are consistent, lock-free and immutable. No goroutine may modify a row after it
// was written or read.
package catalog

import (
	"fmt"

	"github.com/hashicorp/go-memdb"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/schedapi"
)

// Names of tables and indexes.
const (
	tableGraph     = "graph"
	tableWorker    = "worker"
	tableClient    = "client"
	tableDataset   = "dataset"
	tableTombstone = "tombstone"
	tableHead      = "head"

	indexID       = "id"
	indexRevision = "revision"
	indexName     = "name"
)

// tombstonesKept bounds the removals that are remembered. A watcher that missed more of them gets a
// snapshot.
const tombstonesKept = 4096

// Catalog holds the tables.
type Catalog struct{ db *memdb.MemDB }

// New returns an empty catalogue at revision 1. Revision 0 means "from the beginning" to watchers.
func New() *Catalog {
	db, err := memdb.NewMemDB(schema())
	if err != nil {
		panic(fmt.Sprintf("catalog: the schema is wrong: %v", err))
	}
	txn := db.Txn(true)
	must(txn.Insert(tableHead, &head{revision: 1, floor: 1}))
	txn.Commit()
	return &Catalog{db: db}
}

// Begin makes the catalogue begin at a revision: watchers that have seen an earlier one get a
// snapshot. REQUIRES: the revision is higher than the last one.
func (c *Catalog) Begin(revision uint64) {
	txn := c.db.Txn(true)
	must(txn.Insert(tableHead, &head{revision: revision, floor: revision}))
	txn.Commit()
}

// Snapshot returns the state as of the last commit.
func (c *Catalog) Snapshot() schedapi.Snapshot {
	txn := c.db.Txn(false)
	return Snapshot{txn: txn, head: readHead(txn)}
}

// Update runs change on a batch, commits the batch as one revision, and returns that revision. If
// the batch changed nothing, the revision stays the same. REQUIRES: one caller at a time.
func (c *Catalog) Update(change func(*Batch)) uint64 {
	txn := c.db.Txn(true)
	defer txn.Abort()
	before := readHead(txn)
	batch := &Batch{txn: txn, revision: before.revision + 1}
	change(batch)
	if !batch.changed {
		return before.revision
	}
	floor := batch.trim(before.floor)
	must(txn.Insert(tableHead, &head{revision: batch.revision, floor: floor}))
	txn.Commit()
	return batch.revision
}

// Batch collects the changes of one revision.
type Batch struct {
	txn      *memdb.Txn
	revision uint64
	removed  uint32
	changed  bool
}

// PutGraph stores a graph and sets its Revision.
func (b *Batch) PutGraph(row *schedapi.Graph) { row.Revision = b.revision; b.put(tableGraph, row) }

// PutWorker stores a worker and sets its Revision.
func (b *Batch) PutWorker(row *schedapi.Worker) { row.Revision = b.revision; b.put(tableWorker, row) }

// PutClient stores a client and sets its Revision.
func (b *Batch) PutClient(row *schedapi.Client) { row.Revision = b.revision; b.put(tableClient, row) }

// PutDataset stores a dataset and sets its Revision.
func (b *Batch) PutDataset(row *schedapi.Dataset) {
	row.Revision = b.revision
	b.put(tableDataset, row)
}

// RemoveGraph removes a graph. Here and for the other kinds, removing an absent row does nothing.
func (b *Batch) RemoveGraph(id ids.GraphID) {
	b.remove(tableGraph, number(uint64(id)), tombstone{number: uint64(id)})
}

// RemoveWorker removes a worker.
func (b *Batch) RemoveWorker(id ids.WorkerID) {
	b.remove(tableWorker, number(uint64(id)), tombstone{number: uint64(id)})
}

// RemoveClient removes a client.
func (b *Batch) RemoveClient(id ids.ClientID) {
	b.remove(tableClient, number(uint64(id)), tombstone{number: uint64(id)})
}

// RemoveDataset removes a dataset.
func (b *Batch) RemoveDataset(namespace, name string) {
	b.remove(tableDataset, text(namespace, name), tombstone{name: name, namespace: namespace})
}

func (b *Batch) put(table string, row any) {
	b.changed = true
	must(b.txn.Insert(table, row))
}

func (b *Batch) remove(table string, key []byte, stone tombstone) {
	row, err := b.txn.First(table, indexID, key)
	must(err)
	if row == nil {
		return
	}
	b.changed = true
	must(b.txn.Delete(table, row))
	stone.table, stone.revision, stone.order = table, b.revision, b.removed
	b.removed++
	must(b.txn.Insert(tableTombstone, &stone))
}

// trim drops the oldest tombstones beyond tombstonesKept and returns the new floor. It drops all
// tombstones of a revision or none, because a watcher can only resume between revisions.
func (b *Batch) trim(floor uint64) uint64 {
	if b.removed == 0 {
		return floor
	}
	rows, err := b.txn.Get(tableTombstone, indexID)
	must(err)
	var tombstones []*tombstone
	for row := rows.Next(); row != nil; row = rows.Next() {
		tombstones = append(tombstones, row.(*tombstone))
	}
	excess := len(tombstones) - tombstonesKept
	for i, stone := range tombstones {
		if i >= excess && stone.revision != floor {
			break
		}
		floor = max(floor, stone.revision)
		must(b.txn.Delete(tableTombstone, stone))
	}
	return floor
}

func readHead(txn *memdb.Txn) *head {
	row, err := txn.First(tableHead, indexID, number(0))
	must(err)
	return row.(*head)
}

// must turns errors of go-memdb into panics. They only report a wrong schema or a wrong row type.
func must(err error) {
	if err != nil {
		panic("catalog: " + err.Error())
	}
}

func schema() *memdb.DBSchema {
	s := &memdb.DBSchema{Tables: map[string]*memdb.TableSchema{}}
	for _, table := range []string{tableGraph, tableWorker, tableClient, tableDataset, tableTombstone, tableHead} {
		s.Tables[table] = &memdb.TableSchema{Name: table, Indexes: map[string]*memdb.IndexSchema{
			indexID:       {Name: indexID, Unique: true, Indexer: byID{}},
			indexRevision: {Name: indexRevision, Indexer: byRevision{}},
		}}
	}
	s.Tables[tableWorker].Indexes[indexName] = &memdb.IndexSchema{Name: indexName, Indexer: byName{}}
	return s
}

// byID indexes rows by their own key. Its arguments are keys as bytes.
type byID struct{}

func (byID) FromObject(row any) (bool, []byte, error) {
	key, _ := keyOf(row)
	return true, key, nil
}
func (byID) FromArgs(args ...any) ([]byte, error) { return args[0].([]byte), nil }

// byRevision indexes rows by the revision of their last change.
type byRevision struct{}

func (byRevision) FromObject(row any) (bool, []byte, error) {
	_, revision := keyOf(row)
	return true, number(revision), nil
}
func (byRevision) FromArgs(args ...any) ([]byte, error) { return args[0].([]byte), nil }

// byName indexes workers by name. go-memdb appends the id, so the newest incarnation comes last.
type byName struct{}

func (byName) FromObject(row any) (bool, []byte, error) {
	return true, text(row.(*schedapi.Worker).Name), nil
}
func (byName) FromArgs(args ...any) ([]byte, error) { return args[0].([]byte), nil }
