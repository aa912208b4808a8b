package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// namesOf is a scheduler with one of each kind of thing.
type namesOf struct {
	millracev1.SchedulerServiceClient
}

func (namesOf) ListWorkers(context.Context, *millracev1.ListWorkersRequest, ...grpc.CallOption) (*millracev1.ListWorkersResponse, error) {
	return &millracev1.ListWorkersResponse{Workers: []*millracev1.Worker{{Name: "gpu-0", State: millracev1.WorkerState_WORKER_STATE_ACTIVE}}}, nil
}

func (namesOf) ListGraphs(context.Context, *millracev1.ListGraphsRequest, ...grpc.CallOption) (*millracev1.ListGraphsResponse, error) {
	return &millracev1.ListGraphsResponse{Graphs: []*millracev1.Graph{{GraphId: 3, Name: "etl", State: millracev1.GraphState_GRAPH_STATE_FAILED}, {GraphId: 4}}}, nil
}

func (namesOf) ListTasks(_ context.Context, r *millracev1.ListTasksRequest, _ ...grpc.CallOption) (*millracev1.ListTasksResponse, error) {
	return &millracev1.ListTasksResponse{Tasks: []*millracev1.Task{{Key: r.GetKeyPrefix() + "-1", State: millracev1.TaskState_TASK_STATE_READY}}}, nil
}

func (namesOf) ListDatasets(context.Context, *millracev1.ListDatasetsRequest, ...grpc.CallOption) (*millracev1.ListDatasetsResponse, error) {
	return nil, errors.New("no answer")
}

func TestNamesAreCompleted(t *testing.T) {
	for want, names := range map[string]namer{
		"gpu-0\tactive": workerNames, "g3\tfailed etl,g4\tunspecified": graphNames, "3\tfailed etl,4\tunspecified": graphNumbers, "sum-1\tready": taskKeys,
	} {
		got, err := names(t.Context(), namesOf{}, "sum")
		if err != nil || strings.Join(got, ",") != want {
			t.Errorf("%q %v, want %q", got, err, want)
		}
	}
	if got, err := datasetNames(t.Context(), namesOf{}, ""); got != nil || err == nil {
		t.Errorf("%v %v", got, err)
	}
	if got := plainColumns("a\x1b\tb\tc"); got != "a\\u001b\tb\\u0009c" {
		t.Errorf("%q", got)
	}
	// Without a cluster the shell gets no names, and no error.
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	for _, name := range []string{"MILLRACE_ADDRESS", "MILLRACE_SCHEDULER_FILE"} {
		t.Setenv(name, "")
	}
	for _, args := range [][]string{{"drain", ""}, {"cancel", ""}, {"describe", "worker", ""}, {"logs", "--worker", ""}, {"trace", ""}} {
		out, err := commandLine(t, append([]string{"__complete"}, args...)...)
		if err != nil || !strings.HasPrefix(out, ":4\n") {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}

func TestEveryCommandHasAManPage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	if _, err := commandLine(t, "man", dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"millrace.1", "millrace-get.1", "millrace-context-add.1"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !strings.Contains(string(text), ".SH") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A changed text is shown below the one before, and on a terminal in its place.
func TestWatchShowsChanges(t *testing.T) {
	for inPlace, want := range map[bool]string{
		false: "one\n\ntwo\n\none\n",
		true:  "\x1b[H\x1b[Jone\n\x1b[Htwo\x1b[K\n\x1b[J\x1b[Hone\x1b[K\n\x1b[J",
	} {
		var out strings.Builder
		a := &app{out: &out}
		ctx, cancel := context.WithCancel(t.Context())
		texts := []string{"one\n", "one\n", "two\n", "one\n", "never shown"}
		err := a.again(ctx, time.Microsecond, inPlace, func(context.Context) error {
			_, err := io.WriteString(a.out, texts[0])
			if texts = texts[1:]; len(texts) == 0 {
				cancel()
			}
			return err
		})
		cancel()
		if err != nil || out.String() != want {
			t.Errorf("in place %v: %v %q, want %q", inPlace, err, out.String(), want)
		}
	}
}
