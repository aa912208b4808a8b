package cli

import (
	"strings"
	"testing"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

func TestOutputIsPrintedInWholeLines(t *testing.T) {
	var out strings.Builder
	p := &logPrinter{to: &out, begun: make(map[logStream]string)}
	for _, o := range []*millracev1.TaskOutput{
		{TaskId: 1, Key: "a\x1b", Text: "one\ntw"},
		{TaskId: 2, Key: "b", Text: "other\n"},
		{TaskId: 1, Key: "a\x1b", Text: "o\r\n 10 %\r 20 %"},
		{TaskId: 1, Key: "a\x1b", Text: "\r 30 %", SkippedBytes: 2048},
		{TaskId: 1, Key: "a\x1b", Text: "to stderr", Stderr: true},
	} {
		if err := p.print("w", &millracev1.FollowLogsResponse{Outputs: []*millracev1.TaskOutput{o}}); err != nil {
			t.Fatal(err)
		}
	}
	const whole = "[a\\u001b w] one\n[b w] other\n[a\\u001b w] two\n[a\\u001b w]  20 %\n[a\\u001b w] [... 2.0 KiB left out ...]\n"
	if out.String() != whole {
		t.Errorf("before the end:\n%s", out.String())
	}
	p.sweep()
	if rest := strings.TrimPrefix(out.String(), whole); !strings.Contains(rest, "]  30 %\n") || !strings.Contains(rest, "] to stderr\n") || len(p.begun)+len(p.prefixes) > 0 {
		t.Errorf("at the end:\n%s", rest)
	}
}
