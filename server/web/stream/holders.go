package stream

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"github.com/millrace/millrace/internal/edge"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/text"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

const (
	// holdersTasks bounds the tasks of one request of ServeHolders. namedHolders bounds the holders
	// of each that it names, and, apart from them, the tasks that need it.
	holdersTasks, namedHolders = 50, 8
	// namedDatasets bounds the datasets among which it looks for the names of some.
	namedDatasets = 10_000
)

// holderRow names one holder of a result, or one task that needs it.
type holderRow struct {
	// Kind is client, dataset, graph (a detached one) or task.
	Kind string `json:"kind"`
	// ID is the number that lists show. A dataset has none.
	ID string `json:"id,omitempty"`
	// Name is the name of a client or dataset, or the key of a task. Empty: it has none, or it is
	// gone.
	Name      string `json:"name,omitempty"`
	Namespace string `json:"namespace,omitempty"`
}

// ServeHolders answers with the clients, datasets and detached graphs that hold the results of some
// tasks, and with the tasks that need them, by the numbers of the tasks.
func (h *Hub) ServeHolders(w http.ResponseWriter, r *http.Request) error {
	given := r.URL.Query()["task"]
	if len(given) > holdersTasks {
		return edge.InvalidField("task", fmt.Sprintf("%d tasks; at most %d", len(given), holdersTasks))
	}
	tasks := make([]ids.TaskID, len(given))
	for i, number := range given {
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			return edge.InvalidField("task", fmt.Sprintf("%q is not the number of a task", text.Cut(number, 100)))
		}
		tasks[i] = ids.TaskID(n)
	}
	ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
	defer cancel()
	holders, dependents := make([][]sched.Holder, len(tasks)), make([][]sched.Dependent, len(tasks))
	err := h.scheduler.Read(ctx, func(r schedapi.Reader) {
		for i, task := range tasks {
			holders[i], dependents[i] = r.HoldersOf(task, namedHolders), r.DependentsOf(task, namedHolders)
		}
	})
	if err != nil {
		return err
	}
	names := holderNames{config: &h.config, snapshot: h.scheduler.LastSnapshot()}
	answer := map[string][]holderRow{}
	for i, task := range tasks {
		rows := []holderRow{}
		for _, holder := range holders[i] {
			rows = append(rows, names.of(holder))
		}
		for _, d := range dependents[i] {
			rows = append(rows, holderRow{Kind: "task", ID: strconv.FormatUint(uint64(d.Task), 10), Name: d.Key})
		}
		answer[strconv.FormatUint(uint64(task), 10)] = rows
	}
	data, _ := json.Marshal(answer) // Texts have a JSON.
	writeJSON(w, data)
	return nil
}

// holderNames finds the names of holders for one request.
type holderNames struct {
	config   *Config
	snapshot schedapi.Snapshot
	// datasets are read when the first one is asked for.
	datasets map[uint64]*schedapi.Dataset
}

func (n *holderNames) of(holder sched.Holder) holderRow {
	switch holder.Kind {
	case sched.HolderClient:
		id := ids.ClientID(holder.Number)
		row := holderRow{Kind: "client", ID: strconv.FormatUint(n.config.Rows.ClientNumber(id), 10)}
		if c := n.snapshot.Client(id); c != nil {
			row.Name, row.Namespace = c.Name, c.Namespace
		}
		return row
	case sched.HolderGraph:
		return holderRow{Kind: "graph", ID: strconv.FormatUint(holder.Number, 10)}
	case sched.HolderDataset:
	}
	if n.datasets == nil {
		n.datasets = map[uint64]*schedapi.Dataset{}
		all, _ := n.snapshot.Datasets("", "", "", namedDatasets)
		for _, d := range all {
			n.datasets[d.Number] = d
		}
	}
	row := holderRow{Kind: "dataset"}
	if d := n.datasets[holder.Number]; d != nil {
		row.Name, row.Namespace = d.Name, d.Namespace
	}
	return row
}
