package consensus

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// newLogger returns the log of Raft, whose lines go into ours. Raft calls things errors that it
// tries again at once, such as a peer that cannot be reached, so each level is one lower here.
func newLogger(log *slog.Logger) hclog.Logger {
	logger := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "raft", Level: hclog.Info, Output: io.Discard})
	logger.RegisterSink(sink{log})
	return logger
}

type sink struct{ log *slog.Logger }

// Accept is part of hclog.SinkAdapter.
func (s sink) Accept(_ string, level hclog.Level, message string, args ...any) {
	to := slog.LevelDebug
	switch level {
	case hclog.Error:
		to = slog.LevelWarn
	case hclog.Warn:
		to = slog.LevelInfo
	case hclog.NoLevel, hclog.Trace, hclog.Debug, hclog.Info, hclog.Off:
	}
	for i, arg := range args {
		if format, ok := arg.(hclog.Format); ok && len(format) > 0 {
			args[i] = fmt.Sprintf(fmt.Sprint(format[0]), format[1:]...)
		}
	}
	s.log.Log(context.Background(), to, "raft: "+message, args...)
}
