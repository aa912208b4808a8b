package e2e

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	millrace "github.com/millrace/millrace/clients/go"
)

// TestItems: tasks get items of a list, and the command line and errors name them.
func TestItems(t *testing.T) {
	ctx, c := soon(t), shared.dial(t, millrace.WithNamespace(namespace(t)))
	list, err := c.Submit(ctx, millrace.Native("core.list"), millrace.Args(3, 4, "x"), millrace.WithKey("items-list"))
	if err != nil {
		t.Fatal(err)
	}
	sum, err := c.Submit(ctx, millrace.Native("array.map"), millrace.Args("x0*x1", list.Item(0, 3), list.Item(1, 3)), millrace.WithKey("items-product"))
	if err != nil {
		t.Fatal(err)
	}
	if v, err := millrace.Get[int](ctx, sum); err != nil || v != 12 {
		t.Errorf("%v, %v", v, err)
	}
	absent, err := c.Submit(ctx, millrace.Native("core.identity"), millrace.Args(list.Item(5, 0)))
	if err != nil {
		t.Fatal(err)
	}
	var failed *millrace.TaskError
	if err := absent.Wait(ctx); !errors.As(err, &failed) || !strings.Contains(failed.Message, "input 0, item 5 of the result of task items-list: the result is a list of 3 items") {
		t.Errorf("an item that is not there: %v", err)
	}
	space := "--namespace=" + namespace(t)
	for _, try := range []struct {
		args []string
		want string
	}{
		{[]string{"describe", "task", "items-product"}, "items-list[0] items-list[1]"},
		{[]string{"get", "tasks", "-o", "wide"}, "2 (2 items)"},
		{[]string{"explain", absent.Key()}, "input 0, item 5 of the result of task items-list"},
		{[]string{"get", "tasks", "-o", "json"}, `"item": 1`},
	} {
		if out, errs, code := shared.command(t, "", append(try.args, space)...); code != 0 || !strings.Contains(strings.Join(strings.Fields(out), " "), try.want) {
			t.Errorf("millrace %q: exit code %d, %s%s; want %q", try.args, code, out, errs, try.want)
		}
	}
}

// TestItemsSurviveAWorker: tasks join items of lists of both workers, one of which is killed in the
// middle. Its lists are made again, and all joins are right.
func TestItemsSurviveAWorker(t *testing.T) {
	c := startCluster(t, "--workers", "2")
	client, ctx := c.dial(t), soon(t)
	const lists, items, length = 4, 16, 32 << 10 // items of 256 KiB
	g := client.NewGraph("lists and joins")
	var made []millrace.Key
	for i := range lists {
		var parts []any
		for j := range items {
			first := (i*items + j) * length
			parts = append(parts, g.Add("", millrace.Native("array.arange"), millrace.Args(first, first+length, 1)))
		}
		made = append(made, g.Add(fmt.Sprint("list-", i), millrace.Native("core.list"), millrace.Args(parts...), millrace.Hold(),
			millrace.WithPreferredWorkers(fmt.Sprintf("host-%d", i%2))))
	}
	for j := range items {
		var parts []millrace.Item
		for _, list := range made {
			parts = append(parts, list.Item(j, items))
		}
		g.Add(fmt.Sprint("join-", j), millrace.Native("array.concat"), millrace.Args(parts), millrace.Hold())
	}
	victim := workerOf(t, client, "host-1")
	run, err := g.Submit(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var joins []*millrace.Future
	for j := range items {
		joins = append(joins, run.Future(millrace.Key(fmt.Sprint("join-", j))))
	}
	for _, err := range millrace.AsCompleted(ctx, joins...) {
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	if err := syscall.Kill(int(victim.GetPid()), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	within(t, "the worker was replaced", func() bool { return workerOf(t, client, "host-1").GetPid() != victim.GetPid() })
	for j, join := range joins {
		a, err := join.Array(ctx)
		if err != nil {
			t.Fatal(err)
		}
		got, err := millrace.Slice[int64](a)
		if err != nil || len(got) != lists*length {
			t.Fatalf("join %d: %s, %v", j, a, err)
		}
		for n, v := range got {
			if want := int64((n/length*items+j)*length + n%length); v != want {
				t.Fatalf("join %d: element %d is %d, not %d", j, n, v, want)
			}
		}
	}
}
