package descriptors_test

import (
	"fmt"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/descriptors"
)

func TestChildrenInheritNothing(t *testing.T) {
	var leaky [2]int
	if err := unix.Pipe2(leaky[:], 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = unix.Close(leaky[0]), unix.Close(leaky[1]) }()
	has := func() bool {
		return exec.Command("test", "-e", fmt.Sprintf("/proc/self/fd/%d", leaky[1])).Run() == nil
	}
	if !has() {
		t.Fatal("a descriptor without the mark is not inherited: the test shows nothing")
	}
	if err := descriptors.CloseOnExec(); err != nil {
		t.Fatal(err)
	}
	if has() {
		t.Error("it is inherited all the same")
	}
}
