package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// TestTheLibraryOfLinearAlgebraIsShown: a worker that may use no library computes in pure Go, and
// the worker, a task and its explanation say so. Other tasks say nothing.
func TestTheLibraryOfLinearAlgebraIsShown(t *testing.T) {
	c := startCluster(t, "--workers", "1", "--memory-limit", "64MiB", "--blas-library", "none")
	graph := `{"tasks": [{"key": "r", "op": "array.qr", "args": [[[3, 0], [4, 5]], "r"]}, {"key": "sum", "op": "array.reduce", "args": [[3, 4], "sum"]}]}`
	if out, errs, code := c.command(t, graph, "submit", "--wait", "-f", "-"); code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, out, errs)
	}
	for _, test := range []struct{ command, shown string }{
		{"describe task r", "pure Go"},
		{"explain r", "pure Go"},
		{"get workers -o wide", "pure Go"},
		{"describe worker host-0", "pure Go"},
		{"describe task sum", ""},
	} {
		out, errs, code := c.command(t, "", strings.Fields(test.command)...)
		if code != 0 || strings.Contains(out, "pure Go") != (test.shown != "") {
			t.Errorf("%s: exit code %d\n%s%s", test.command, code, out, errs)
		}
	}
	worker := c.succeed(t, "get", "workers", "--json")["workers"]
	if got := fmt.Sprint(dig(worker, 0, "linearAlgebra", "library")); got != "pure Go" {
		t.Errorf("the worker's library is %q", got)
	}
}
