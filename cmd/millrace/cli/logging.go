package cli

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/lmittmann/tint"
	"golang.org/x/term"
)

// Formats of the log.
const (
	logText = "text"
	logJSON = "json"
)

// logFormat returns the log format that --log-format selects.
func (a *app) logFormat() (string, error) {
	switch format := a.settings.String("log-format"); format {
	case logText, logJSON:
		return format, nil
	case "auto", "":
		if onTerminal() {
			return logText, nil
		}
		return logJSON, nil
	default:
		return "", usageError{fmt.Errorf("--log-format %s: auto, text or json", format)}
	}
}

func onTerminal() bool { return term.IsTerminal(int(os.Stderr.Fd())) }

// logging sets the default logger.
func (a *app) logging() error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(a.settings.String("log-level"))); err != nil {
		return usageError{fmt.Errorf("--log-level: %w", err)}
	}
	format, err := a.logFormat()
	if err != nil {
		return err
	}
	slog.SetDefault(slog.New(logHandler(a.err, format, level, onTerminal())))
	return nil
}

func logHandler(to io.Writer, format string, level slog.Level, colours bool) slog.Handler {
	if format == logText {
		return tint.NewTextHandler(to, &tint.Options{Level: level, TimeFormat: "15:04:05.000", NoColor: !colours})
	}
	return slog.NewJSONHandler(to, &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration {
			a.Value = slog.StringValue(a.Value.Duration().String()) // 50ms instead of 50000000
		}
		return a
	}})
}
