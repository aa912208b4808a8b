package stream

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/server/loop"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// The pages name the clients, datasets and graphs that hold a result, and the tasks that need it.
func TestHoldersHaveNames(t *testing.T) {
	h := newHub(t)
	l, ctx := h.scheduler.(*loop.Loop), t.Context()
	open := func(name string) *schedapi.Client {
		t.Helper()
		lease, err := l.OpenClient(ctx, schedapi.ClientSpec{Name: name, TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		return lease
	}
	named, nameless := open("etl"), open("")
	submit := func(graph sched.GraphSubmitted) schedapi.Accepted {
		t.Helper()
		graph.Ops = []sched.OpSpec{{Kind: sched.OpNative, Name: "noop"}}
		submitted, err := l.Submit(ctx, schedapi.Submission{Graph: graph})
		if err != nil {
			t.Fatal(err)
		}
		return submitted
	}
	a, b := sched.TaskSpec{Key: "a", Hold: true}, sched.TaskSpec{Key: "b", Hold: true, Inputs: []string{"a"}}
	submitted := submit(sched.GraphSubmitted{Client: named.ID, Tasks: []sched.TaskSpec{a, b}})
	submit(sched.GraphSubmitted{Client: nameless.ID, Tasks: []sched.TaskSpec{a}})
	detached := submit(sched.GraphSubmitted{Tasks: []sched.TaskSpec{{Key: "c", Hold: true}}})
	if _, err := l.Publish(ctx, schedapi.DatasetSpec{Client: named.ID, Name: "prices", Keys: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Snapshot(ctx); err != nil {
		t.Fatal(err)
	}
	ask := func(query string) (map[string][]holderRow, error) {
		answer := httptest.NewRecorder()
		err := h.ServeHolders(answer, httptest.NewRequest(http.MethodGet, "/api/holders?"+query, nil))
		out := map[string][]holderRow{}
		if err == nil {
			err = json.Unmarshal(answer.Body.Bytes(), &out)
		}
		return out, err
	}
	first, second, third := uint64(submitted.Tasks[0]), uint64(submitted.Tasks[1]), uint64(detached.Tasks[0])
	got, err := ask(fmt.Sprintf("task=%d&task=%d&task=%d&task=12345", first, second, third))
	if err != nil {
		t.Fatal(err)
	}
	shown := func(lease *schedapi.Client) string { return fmt.Sprint(h.config.Rows.ClientNumber(lease.ID)) }
	if shown(nameless) == fmt.Sprint(uint64(nameless.ID)) {
		t.Error("all roles see the number of a lease")
	}
	etl := holderRow{Kind: "client", ID: shown(named), Name: "etl"}
	want := map[string][]holderRow{
		fmt.Sprint(first):  {{Kind: "client", ID: shown(nameless)}, etl, {Kind: "dataset", Name: "prices"}, {Kind: "task", ID: fmt.Sprint(second), Name: "b"}},
		fmt.Sprint(second): {etl},
		fmt.Sprint(third):  {{Kind: "graph", ID: fmt.Sprint(uint64(detached.Graph))}},
		"12345":            {},
	}
	for _, rows := range []map[string][]holderRow{got, want} {
		for _, list := range rows { // order-free: each list is sorted by itself
			slices.SortFunc(list, func(a, b holderRow) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, query := range []string{"task=x", strings.Repeat("task=1&", holdersTasks+1)} {
		if _, err := ask(query); err == nil {
			t.Errorf("%q has an answer", query)
		}
	}
}

// A result that everybody uses has a short answer.
func TestNamedHoldersAreFew(t *testing.T) {
	h := newHub(t)
	l, ctx := h.scheduler.(*loop.Loop), t.Context()
	lease, err := l.OpenClient(ctx, schedapi.ClientSpec{Name: "etl", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	tasks := []sched.TaskSpec{{Key: "a", Hold: true}}
	for i := range 1000 {
		tasks = append(tasks, sched.TaskSpec{Key: fmt.Sprint("b", i), Hold: true, Inputs: []string{"a"}})
	}
	submitted, err := l.Submit(ctx, schedapi.Submission{Graph: sched.GraphSubmitted{
		Client: lease.ID, Tasks: tasks, Ops: []sched.OpSpec{{Kind: sched.OpNative, Name: "noop"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	answer := httptest.NewRecorder()
	if err := h.ServeHolders(answer, httptest.NewRequest(http.MethodGet, fmt.Sprintf("/api/holders?task=%d", submitted.Tasks[0]), nil)); err != nil {
		t.Fatal(err)
	}
	var out map[string][]holderRow
	if err := json.Unmarshal(answer.Body.Bytes(), &out); err != nil {
		t.Fatal(err)
	}
	if n := len(out[fmt.Sprint(uint64(submitted.Tasks[0]))]); n != 1+namedHolders {
		t.Errorf("%d rows, want %d", n, 1+namedHolders)
	}
}
