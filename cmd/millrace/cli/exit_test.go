package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/server/consensus"
	"github.com/millrace/millrace/worker/supervisor"
)

func TestExitCodes(t *testing.T) {
	graph := graphError{&millracev1.Graph{GraphId: 7, Name: "etl", State: millracev1.GraphState_GRAPH_STATE_FAILED, FirstError: "task a: no"}}
	for _, tc := range []struct {
		err  error
		want int
	}{
		{unusableError{errors.New("no ucx")}, exitUnusable},
		{fmt.Errorf("workers: %w", &supervisor.UnusableError{Name: "host-0", Cause: "no ucx"}), exitUnusable},
		{usageError{errors.New("--slots -1")}, exitUsage},
		{fmt.Errorf("run: %w", consensus.ErrRemoved), exitDirectory},
		{usageError{consensus.ErrRemoved}, exitUsage},
		{fmt.Errorf("get: %w", &millrace.TaskError{Key: "a", Reason: "TIMEOUT"}), exitTaskFailed},
		{fmt.Errorf("wait: %w", graph), exitTaskFailed},
		{fmt.Errorf("wait: %w", context.DeadlineExceeded), exitTimeout},
	} {
		if got := exitCode(tc.err); got != tc.want {
			t.Errorf("%v: exit code %d, want %d", tc.err, got, tc.want)
		}
	}
	late := lateError{3, 5 * time.Second, &millrace.Error{Op: "Watch", Code: codes.DeadlineExceeded, Message: "stream terminated by RST_STREAM"}}
	if text := errorText(late); exitCode(late) != exitTimeout || !strings.HasPrefix(text, "graph g3 has not ended within 5s: `millrace wait g3`") || strings.Contains(text, "stream") {
		t.Errorf("exit code %d, %q", exitCode(late), text)
	}
	if text := graph.Error(); text != "graph g7 (etl) failed: task a: no" || strings.Contains(text, `""`) {
		t.Errorf("got %q", text)
	}
}
