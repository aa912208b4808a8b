package e2e

import (
	"context"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// plugins returns the service of plugins.
func (r *restarted) plugins(t *testing.T) (millracev1.PluginServiceClient, func() context.Context) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+r.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // It was only used for calls that have ended.
	return millracev1.NewPluginServiceClient(conn), func() context.Context {
		return metadata.AppendToOutgoingContext(soon(t), "authorization", "Bearer t0ken")
	}
}

// marks returns a call that makes a directory, whose name begins with a prefix, and their number.
func marks(t *testing.T, dir, prefix string) (call *millracev1.FunctionCall, count func() int) {
	t.Helper()
	text := func(s string) *millracev1.Value {
		return &millracev1.Value{Kind: &millracev1.Value_StringValue{StringValue: s}}
	}
	call = &millracev1.FunctionCall{Name: "tempfile:mkdtemp", Arguments: &millracev1.Arguments{
		Positional: []*millracev1.Value{text(""), text(prefix), text(dir)},
	}}
	return call, func() (n int) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), prefix) {
				n++
			}
		}
		return n
	}
}

// A scheduler with a journal is killed. Its locks, queues, variables, events, topics, metadata,
// plugins and drains are there again: what a client was told is so, and the processes of workers
// keep their plugins. It tests these rows of the table in docs/running.md.
func TestSharedStateOutlivesItsScheduler(t *testing.T) {
	t.Parallel()
	scheduler := withJournal(t)
	c, other := scheduler.dial(t), scheduler.dial(t)
	scheduler.workers(t, c)
	ctx := soon(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	lock, later := c.Lock("l"), c.Lock("later")
	must(lock.Acquire(ctx))
	must(later.Acquire(ctx))
	result := submitted(t, c, millrace.Python("operator:add"), "result", 40, 2)
	must(result.Wait(ctx))
	must(c.SetVariable(ctx, "v", result))
	queue := c.Queue("q", 0)
	for _, text := range []string{"first", "second"} {
		must(queue.Put(ctx, text))
	}
	must(c.SetEvent(ctx, "e", true))
	must(c.PublishTo(ctx, "t", "message"))
	must(c.SetMetadata(ctx, "leaf", "a", "b"))
	result.Release()

	service, calling := scheduler.plugins(t)
	dir := t.TempDir()
	setup, setups := marks(t, dir, "up")
	teardown, teardowns := marks(t, dir, "down")
	registered, err := service.RegisterPlugin(calling(), &millracev1.RegisterPluginRequest{Plugin: &millracev1.Plugin{Name: "p", Setup: setup, Teardown: teardown}})
	must(err)
	if !registered.GetRegistered() || setups() != 2 {
		t.Fatalf("the plugin is registered: %t, and %d processes have it", registered.GetRegistered(), setups())
	}
	workers, err := c.Workers(ctx, millracev1.WorkerState_WORKER_STATE_ACTIVE)
	must(err)
	drained := workers[0].GetName()
	_, err = c.DrainWorkers(ctx, "a loud fan", drained)
	must(err)

	scheduler.restart(t)

	if got, err := other.Lock("l").TryAcquire(soon(t)); got || err != nil {
		t.Errorf("a lock that another client holds is acquired: %t, %v", got, err)
	}
	fence := lock.Fence()
	must(lock.Release(soon(t)))
	theirs := other.Lock("l")
	if got, err := theirs.TryAcquire(soon(t)); !got || err != nil || theirs.Fence() <= fence {
		t.Errorf("a lock that was released is acquired: %t, with the number %d after %d; %v", got, theirs.Fence(), fence, err)
	}
	value, err := other.Variable(soon(t), "v")
	must(err)
	future, ok := value.(*millrace.Future)
	if !ok {
		t.Fatalf("the variable is %v", value)
	}
	if got, err := millrace.Get[int64](soon(t), future); got != 42 || err != nil {
		t.Errorf("the result in the variable is %v, %v", got, err)
	}
	for _, want := range []string{"first", "second"} {
		if got, err := other.Queue("q", 0).Take(soon(t)); got != want || err != nil {
			t.Errorf("from the queue comes %v, not %s; %v", got, want, err)
		}
	}
	must(other.WaitEvent(soon(t), "e"))
	if messages, err := other.ReadTopic(soon(t), "t", 0); err != nil || len(messages) != 1 || messages[0].Value != "message" {
		t.Errorf("the topic has %v, %v", messages, err)
	}
	if leaf, found, err := other.Metadata(soon(t), "a", "b"); leaf != "leaf" || !found || err != nil {
		t.Errorf("the metadata are %v, %v", leaf, err)
	}
	within(t, "the drained worker is back, and drained", func() bool {
		back, err := c.Workers(soon(t), millracev1.WorkerState_WORKER_STATE_DRAINED)
		return err == nil && len(back) == 1 && back[0].GetName() == drained && back[0].GetDrain().GetReason() == "a loud fan"
	})
	// A worker that has another plugin now has carried out the whole list.
	second, seconds := marks(t, dir, "second")
	within(t, "both workers have another plugin", func() bool {
		_, err := service.RegisterPlugin(calling(), &millracev1.RegisterPluginRequest{Plugin: &millracev1.Plugin{Name: "second", Setup: second}, Idempotent: true})
		return err == nil && seconds() == 2
	})
	if setups() != 2 || teardowns() != 0 {
		t.Errorf("after the restart the plugin was set up %d times, and torn down %d times", setups(), teardowns())
	}
	list, err := service.ListPlugins(calling(), &millracev1.ListPluginsRequest{})
	if err != nil || len(list.GetPlugins()) != 2 || list.GetPlugins()[0].GetName() != "p" {
		t.Errorf("the plugins are %v, %v", list, err)
	}
	// The lease of the other lock ends with its client.
	must(c.Close())
	if err := other.Lock("later").Acquire(soon(t)); err != nil {
		t.Errorf("the lock of a client that was closed: %v", err)
	}
}
