package cli

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestLogsTellDurationsWithTheirUnit(t *testing.T) {
	for format, want := range map[string]string{logJSON: `"in":"50ms","error":"EOF"`, logText: `in=50ms error=EOF`} {
		var b bytes.Buffer
		slog.New(logHandler(&b, format, slog.LevelInfo, false)).Info("again", "in", 50*time.Millisecond, "error", errors.New("EOF"))
		if !strings.Contains(b.String(), want) {
			t.Errorf("%s: %q, want %s", format, b.String(), want)
		}
	}
}
