package stacks_test

import (
	"fmt"
	"strings"
	"testing"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/stacks"
)

func call(caller uint32, samples uint64, name string) *pb.ProfileCall {
	return &pb.ProfileCall{Caller: caller, Samples: samples, Name: name, File: "f.py", FirstLine: 1}
}

func shown(calls []*pb.ProfileCall) string {
	var lines []string
	for _, c := range calls {
		lines = append(lines, fmt.Sprintf("%d %s %d", c.GetCaller(), c.GetName(), c.GetSamples()))
	}
	return strings.Join(lines, ", ")
}

func TestTreesAreSummedByCaller(t *testing.T) {
	var tree stacks.Tree
	tree.Add([]*pb.ProfileCall{call(0, 5, "a"), call(1, 4, "b"), call(1, 1, "c")})
	tree.Add([]*pb.ProfileCall{call(0, 1, "b"), call(0, 3, "a"), call(2, 3, "c"), call(3, 2, "b")})
	if got, want := shown(tree.Calls(100)), "0 a 8, 1 b 4, 1 c 4, 3 b 2, 0 b 1"; got != want {
		t.Errorf("%s instead of %s", got, want)
	}
	if n := tree.Samples(); n != 9 {
		t.Errorf("%d samples", n)
	}
	if got, want := shown(tree.Calls(3)), "0 a 8, 1 b 4, 1 c 4"; got != want {
		t.Errorf("of the largest 3: %s instead of %s", got, want)
	}
}

func TestCallsWithoutCallerAreLeftOut(t *testing.T) {
	var tree stacks.Tree
	tree.Add([]*pb.ProfileCall{call(2, 5, "a"), call(1, 4, "b"), call(0, 1, "c"), call(9, 1, "d")})
	if got := shown(tree.Calls(100)); got != "0 c 1" {
		t.Error(got)
	}
}
