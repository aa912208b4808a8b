package stream

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/schedapi"
)

var rowJSON = protojson.MarshalOptions{EmitDefaultValues: true}

// table is the part of a topic that keeps the encoded rows: changed rows go to all viewers, and new
// viewers get all of them.
type table[K comparable] struct {
	name string
	rows map[K][]byte
	// order lists the rows as they came.
	order []K
	// whole is the snapshot of the present rows; nil: not encoded yet.
	whole   *event
	changed []K
	removed []K
	id      func(K) string // as JSON
}

func newTable[K comparable](name string, id func(K) string) table[K] {
	return table[K]{name: name, rows: map[K][]byte{}, id: id}
}

// put encodes a row. A row that has not changed is no change.
func (t *table[K]) put(key K, row proto.Message) {
	text, err := rowJSON.Marshal(row)
	if err != nil {
		return // Texts in rows are valid: the loop has checked them.
	}
	t.putText(key, text)
}

// putText puts a row that is encoded already.
func (t *table[K]) putText(key K, text []byte) {
	before, known := t.rows[key]
	if known && bytes.Equal(before, text) {
		return
	}
	if !known {
		t.order = append(t.order, key)
	}
	t.rows[key], t.whole = text, nil
	t.changed = append(t.changed, key)
}

func (t *table[K]) remove(key K) {
	if _, known := t.rows[key]; !known {
		return
	}
	delete(t.rows, key)
	t.order = slices.DeleteFunc(t.order, func(k K) bool { return k == key })
	t.whole = nil
	t.removed = append(t.removed, key)
}

// delta returns the changes since the last call; nil: none.
func (t *table[K]) delta() *event {
	if len(t.changed)+len(t.removed) == 0 {
		return nil
	}
	e := t.encode(false, t.changed, t.removed)
	t.changed, t.removed = t.changed[:0], t.removed[:0]
	return e
}

func (t *table[K]) snapshot(*viewer) *event {
	if t.whole == nil {
		t.whole = t.encode(true, t.order, nil)
	}
	return t.whole
}

func (t *table[K]) encode(snapshot bool, rows, removed []K) *event {
	data := fmt.Appendf(nil, "event: %s\ndata: {\"snapshot\":%t,\"rows\":[", t.name, snapshot)
	first := true
	for _, key := range rows {
		row, there := t.rows[key]
		if !there {
			continue // It was removed after it changed.
		}
		if !first {
			data = append(data, ',')
		}
		data, first = append(data, row...), false
	}
	data = append(data, "],\"removed\":["...)
	for i, key := range removed {
		if i > 0 {
			data = append(data, ',')
		}
		data = append(data, t.id(key)...)
	}
	return &event{data: append(data, "]}\n\n"...)}
}

// workers is the topic of the same name. Its rows have no routes.
type workers struct {
	table[ids.WorkerID]
	config   Config
	revision uint64
	seen     map[ids.WorkerID]schedapi.Worker
}

func newWorkers(config Config) *workers {
	number := func(id ids.WorkerID) string { return strconv.FormatUint(uint64(id), 10) }
	return &workers{table: newTable("workers", number), config: config, seen: map[ids.WorkerID]schedapi.Worker{}}
}

func (t *workers) update(time.Time) *event {
	changes := t.config.Scheduler.LastSnapshot().Changes(schedapi.Selection{Workers: true}, t.revision)
	t.revision = changes.Revision
	for _, w := range changes.Workers {
		// A worker that is seen all the time does not change by that.
		shown := *w
		if shown.Revision = 0; w.State == schedapi.WorkerActive {
			shown.LastSeenAt = time.Time{}
		}
		shown.Routes = nil // a topic of their own
		// Other programs of the host change what its network devices carry all the time. That goes
		// along when something else changes; the page of a worker asks for it.
		network := shown.Network
		shown.Network = nil
		if before, known := t.seen[w.ID]; known && reflect.DeepEqual(before, shown) {
			continue
		}
		t.seen[w.ID] = shown
		shown.Network = network
		t.put(w.ID, t.config.Rows.Worker(&shown))
	}
	if changes.Snapshot {
		for _, id := range slices.Clone(t.order) {
			if !slices.ContainsFunc(changes.Workers, func(w *schedapi.Worker) bool { return w.ID == id }) {
				t.drop(id)
			}
		}
	}
	for _, id := range changes.RemovedWorkers {
		t.drop(id)
	}
	return t.delta()
}

func (t *workers) drop(id ids.WorkerID) {
	delete(t.seen, id)
	t.remove(id)
}

// graphs is the topic of the same name.
type graphs struct {
	table[ids.GraphID]
	config   Config
	revision uint64
}

func newGraphs(config Config) *graphs {
	number := func(id ids.GraphID) string { return `"` + strconv.FormatUint(uint64(id), 10) + `"` }
	return &graphs{table: newTable("graphs", number), config: config}
}

func (t *graphs) update(time.Time) *event {
	changes := t.config.Scheduler.LastSnapshot().Changes(schedapi.Selection{Graphs: true}, t.revision)
	t.revision = changes.Revision
	present := map[ids.GraphID]bool{}
	for _, g := range changes.Graphs {
		shown := *g
		shown.Revision = 0
		t.put(g.ID, t.config.Rows.Graph(&shown))
		present[g.ID] = true
	}
	if changes.Snapshot {
		for _, id := range slices.Clone(t.order) {
			if !present[id] {
				t.remove(id)
			}
		}
	}
	for _, id := range changes.RemovedGraphs {
		t.remove(id)
	}
	return t.delta()
}

// listed is a topic whose rows are read as a whole, since they are few or change rarely.
type listed[K comparable] struct {
	table[K]
	revisions map[K]uint64
	read      func(put func(key K, revision uint64, row func() proto.Message))
}

func (t *listed[K]) update(time.Time) *event {
	present := map[K]bool{}
	t.read(func(key K, revision uint64, row func() proto.Message) {
		present[key] = true
		if before, known := t.revisions[key]; !known || before != revision {
			t.revisions[key] = revision
			t.put(key, row())
		}
	})
	for _, key := range slices.Clone(t.order) {
		if !present[key] {
			delete(t.revisions, key)
			t.remove(key)
		}
	}
	return t.delta()
}

// shownRows bounds the clients and the datasets that are shown.
const shownRows = 10_000

func newClients(config Config) *listed[ids.ClientID] {
	number := func(id ids.ClientID) string {
		return `"` + strconv.FormatUint(config.Rows.ClientNumber(id), 10) + `"`
	}
	t := &listed[ids.ClientID]{table: newTable("clients", number), revisions: map[ids.ClientID]uint64{}}
	t.read = func(put func(ids.ClientID, uint64, func() proto.Message)) {
		clients, _ := config.Scheduler.LastSnapshot().Clients(0, shownRows)
		for _, c := range clients {
			put(c.ID, c.Revision, func() proto.Message { return config.Rows.Client(c) })
		}
	}
	return t
}

// datasetKey names a dataset.
type datasetKey struct{ namespace, name string }

func newDatasets(config Config) *listed[datasetKey] {
	name := func(k datasetKey) string { return string(quoted(nil, k.namespace+"/"+k.name)) }
	t := &listed[datasetKey]{table: newTable("datasets", name), revisions: map[datasetKey]uint64{}}
	t.read = func(put func(datasetKey, uint64, func() proto.Message)) {
		datasets, _ := config.Scheduler.LastSnapshot().Datasets("", "", "", shownRows)
		for _, d := range datasets {
			put(datasetKey{d.Namespace, d.Name}, d.Revision, func() proto.Message { return config.Rows.Dataset(d) })
		}
	}
	return t
}
