package perfetto_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/perfetto"
)

// The slices of a track do not overlap, whatever the order of reports, and the file is JSON.
func TestTraceHasATrackForEachSlot(t *testing.T) {
	base := time.Unix(1_700_000_000, 0)
	ms := func(n int) *durationpb.Duration { return durationpb.New(time.Duration(n) * time.Millisecond) }
	run := func(key string, worker, slot uint32, end, length int) *pb.TaskRun {
		return &pb.TaskRun{
			Key: key, Op: "op", Worker: "gpu-0", WorkerId: worker, Slot: slot, Succeeded: key != "bad", EndTime: timestamppb.New(base.Add(time.Duration(end) * time.Millisecond)),
			RunTime: ms(length), OutputBytes: 100,
		}
	}
	first := run("a", 1, 1, 1000, 40)
	first.FetchTime, first.LoadTime, first.WaitTime, first.DeserializeTime, first.PublishTime = ms(4), ms(3), ms(5), ms(2), ms(3)
	runs := []*pb.TaskRun{
		first,
		run("b", 1, 1, 1000, 40),       // reported together with a
		run("inner", 1, 2, 60000, 100), // runs in the slot that outer gave away
		run("outer", 1, 2, 90000, 80000),
		run("bad", 7, 0, 1000, 10),
		run("c", 7, 0, 1005, 10), // its slot is not known
	}
	var text strings.Builder
	if err := (&perfetto.Trace{Runs: runs}).Write(&text); err != nil {
		t.Fatal(err)
	}
	var file struct {
		TraceEvents []struct {
			Ph, Cat, Name string
			Pid, Tid      int
			Ts, Dur       float64
			Args          map[string]any
		}
	}
	if err := json.Unmarshal([]byte(text.String()), &file); err != nil {
		t.Fatalf("%v:\n%s", err, text.String())
	}
	type track struct{ worker, number int }
	names, ends := map[track]string{}, map[track]map[float64]float64{}
	of, from := map[string]string{}, map[string]float64{}
	peak := 0.0
	for _, e := range file.TraceEvents {
		at := track{e.Pid, e.Tid}
		switch e.Ph {
		case "M":
			if e.Name == "thread_name" {
				names[at], _ = e.Args["name"].(string)
			}
		case "C":
			if n, ok := e.Args["tasks"].(float64); ok && e.Pid == 7 {
				peak = max(peak, n)
			}
		case "X":
			if ends[at] == nil {
				ends[at] = map[float64]float64{}
			}
			begin := e.Ts - float64(base.UnixMicro())
			for b, end := range ends[at] {
				if begin < end-0.5 && begin+e.Dur > b+0.5 {
					t.Errorf("%v overlaps another slice of track %q", e, names[at])
				}
			}
			ends[at][begin] = begin + e.Dur
			if key, ok := e.Args["key"].(string); ok {
				of[key], from[key] = names[at], begin
				if failed := strings.HasSuffix(e.Name, "(failed)"); failed != (key == "bad") {
					t.Errorf("%s has the name %q", key, e.Name)
				}
			} else {
				from[e.Name] = begin
			}
		}
	}
	want := map[string]string{"a": "slot 1", "b": "slot 1", "inner": "slot 2, beside 1", "outer": "slot 2", "bad": "slot unknown, beside 1", "c": "slot unknown"}
	for key, name := range want {
		if of[key] != name {
			t.Errorf("%s is in track %q, want %q", key, of[key], name)
		}
	}
	// b ends when it was reported, and a when b began: 960 ms. Before that are its phases.
	for name, at := range map[string]float64{"b": 960, "publish": 957, "a": 917, "deserialise": 915, "wait for memory": 910, "read from lower tiers": 907, "fetch": 903} {
		if got := from[name] / 1000; got < at-0.01 || got > at+0.01 {
			t.Errorf("%s begins at %v ms, want %v", name, got, at)
		}
	}
	if peak != 2 {
		t.Errorf("at most %v tasks run at once on worker 7, want 2", peak)
	}
}
