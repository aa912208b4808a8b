package logring

import (
	"log/slog"
	"strings"
	"testing"
)

func TestLastLinesAreKept(t *testing.T) {
	var out strings.Builder
	var r Ring
	if got := r.Last(0); len(got) != 0 {
		t.Errorf("of nothing: %v", got)
	}
	log := r.Logger(slog.New(slog.NewTextHandler(&out, nil))).With("worker", "w")
	log.Debug("not enabled")
	for i := range mostLines + 5 {
		log.Info("line", "n", i)
	}
	log.Error("bad", "cause", strings.Repeat("x", 2*lineBytes))
	if !strings.Contains(out.String(), "msg=line worker=w n=0\n") || strings.Contains(out.String(), "not enabled") {
		t.Error("the other logger did not get all lines")
	}
	lines := r.Last(0)
	if len(lines) != mostLines || lines[0].GetText() != "msg=line worker=w n=6" || lines[0].GetLevel() != "INFO" || lines[0].GetTime().AsTime().IsZero() {
		t.Errorf("%d lines, the first one %v", len(lines), lines[0])
	}
	last := r.Last(2)
	if len(last) != 2 || last[0].GetText() != "msg=line worker=w n=1004" || last[1].GetLevel() != "ERROR" || len(last[1].GetText()) > lineBytes {
		t.Errorf("the last two: %v", last)
	}
}
