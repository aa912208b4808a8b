package bench

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The simulated pages read what the sources of the real ones read.
func TestViewersReadWhatPagesRead(t *testing.T) {
	source := func(name string) string {
		t.Helper()
		text, err := os.ReadFile("../web/src/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	// found returns what the groups of a pattern match.
	found := func(text, pattern string) (all []string) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			all = append(all, m[1:]...)
		}
		return all
	}
	store := source("store.ts")
	_, wanted, _ := strings.Cut(store, "const wanted = new Map([")
	wanted, _, _ = strings.Cut(wanted, "]);")
	if got := found(wanted, `\["([a-z]+)", 1\]`); strings.Join(got, ",") != frameTopics {
		t.Errorf("the frame of the pages reads %v", got)
	}
	for i, page := range []struct{ file, topics string }{{"overview.tsx", ""}, {"stream.tsx", "runs"}, {"routes.tsx", "routes"}} {
		text := source("pages/" + page.file)
		topics := found(text, `useTopics\("([a-z]+)"\)`)
		if strings.Contains(text, "useRoutes()") {
			topics = append(topics, "routes")
		}
		if want := strings.Trim(frameTopics+","+strings.Join(topics, ","), ","); viewedPages[i].topics != want {
			t.Errorf("%s reads %s, and the benchmark %s", page.file, want, viewedPages[i].topics)
		}
		if looks := strings.Contains(text, "<Slow />"); looks != viewedPages[i].looks {
			t.Errorf("%s looks why tasks take long: %t", page.file, looks)
		}
	}
	slow := source("pages/slow.tsx")
	want := []string{fmt.Sprint(lookEvery.Milliseconds()), fmt.Sprint(lookAttempts), fmt.Sprint(lookRunning)}
	if got := found(slow, `const (?:everyMs|attempts|looked) = ([0-9]+);`); !slices.Equal(got, want) {
		t.Errorf("slow.tsx has %v, and the benchmark %v", got, want)
	}
	if calls := len(found(slow, `((?:call|get)<)`)); calls != 2 {
		t.Errorf("slow.tsx has %d calls, and the benchmark makes 2", calls)
	}
}

func TestLikely(t *testing.T) {
	for n := range 6 {
		if s, known := likely(make([]float64, n)); known {
			t.Errorf("of %d figures: %v", n, s)
		}
	}
	for n, places := range map[int][2]float64{6: {1, 6}, 8: {1, 8}, 9: {2, 8}, 11: {2, 10}, 20: {6, 15}} {
		var figures []float64
		for i := range n {
			figures = append(figures, float64(n-i))
		}
		if s, known := likely(figures); !known || s != (Spread{places[0], places[1]}) {
			t.Errorf("of %d figures: %v, want %v", n, s, places)
		}
	}
}

func TestTheShareOfViewersIsThatOfTheirPair(t *testing.T) {
	run := func(rate, cpu float64) TasksResult {
		return TasksResult{TasksPerSecond: rate, SchedulerCPUPerTask: cpu}
	}
	m := measured{
		runs:    []TasksResult{run(50_000, 12), run(100_000, 10.5), run(80_000, 11)},
		without: []TasksResult{run(50_000, 11), run(100_000, 10), run(100_000, 10)},
	}
	var out TasksResult
	m.compareViewers(&out)
	if near := func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }; !near(out.ViewersCores, 0.05) || !near(out.ViewersCoresSpread.Max, 0.08) ||
		!near(out.ViewersRatio, 1) || !near(out.ViewersRatioSpread.Min, 0.8) || out.WithoutTasksPerSecond != 100_000 || !near(out.SchedulerCores, 0.88) {
		t.Errorf("%+v", out)
	}
}
