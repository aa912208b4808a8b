package worker_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/workertest"
)

// reserved returns an address at which a worker may listen; no other process is given its port in
// the meantime.
func reserved(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Close(fd); err != nil {
			t.Error(err)
		}
	})
	// Two bound sockets may share a port if both set SO_REUSEADDR and one does not listen.
	if err := errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", name.(*unix.SockaddrInet4).Port)
}

// The HTTP port shows the worker's memory, what it has fetched, and that it takes tasks.
func TestAWorkerServesItsMetrics(t *testing.T) {
	address := reserved(t)
	s := workertest.NewScheduler(t)
	a := start(t, s, nil)
	b := start(t, s, func(c *worker.Config) { c.Name, c.HTTPAddress = "host-1", address })
	for _, w := range []*running{a, b} {
		w.Send(&workerv1.SessionResponse{Peers: []*workerv1.Peer{{WorkerId: a.ID, Name: "host-0", DataAddress: a.Registration.GetDataAddress()}}})
		w.Op(1, native, "array.full")
		w.Op(2, native, "array.reduce")
	}
	a.Assign(&workerv1.Assignment{TaskId: 1, Attempt: 1, OpId: 1, Arguments: workertest.Arguments([]any{1 << 20}, 2.0)})
	in := &workerv1.Input{TaskId: 1, Generation: 1, Bytes: a.Report(1).GetOutputBytes(), Holders: []uint32{a.ID}}
	b.Assign(&workerv1.Assignment{TaskId: 2, Attempt: 1, OpId: 2, Arguments: workertest.Arguments(workertest.Input(0), "sum"), Inputs: []*workerv1.Input{in}})
	b.Report(2)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for path, want := range map[string]string{
		"/metrics": `(?m)^millrace_transfer_received_bytes_total\{path="\w+",worker="host-1"\} [1-9]`, "/healthz": `^ok$`, "/readyz": `^ok$`,
	} {
		response, err := client.Get("http://" + address + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || response.StatusCode != http.StatusOK || !regexp.MustCompile(want).MatchString(strings.TrimSpace(string(body))) {
			t.Errorf("%s: %d %v\n%s", path, response.StatusCode, err, body)
		}
	}
}
