package supervisor

import (
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/worker/workertest"
)

// TestNothingOfASessionLivesWhenItWasEnded: when no process of the session lives, the memory of the
// worker is free for the next one.
func TestNothingOfASessionLivesWhenItWasEnded(t *testing.T) {
	worker := exec.Command("sh", "-c", "trap '' TERM; sleep 1000 & sleep 1000 & echo started; wait")
	worker.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := worker.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	pid := worker.Process.Pid
	if err := worker.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = worker.Wait() // it was killed
	if n := len(members(pid)); n == 0 {
		t.Error("nothing outlived the worker: this tests nothing")
	}
	left := endSession(pid)
	for limit := time.Now().Add(workertest.EventTimeout); len(left) > 0; left = endSession(pid) {
		if time.Now().After(limit) {
			t.Fatalf("%v live on", left)
		}
	}
	if left := members(pid); len(left) > 0 {
		t.Errorf("%v live when nothing is said to", left)
	}
}
