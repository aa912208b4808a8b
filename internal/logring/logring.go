// Package logring is an Interface: the last lines of a process's log, for clients that ask for
// them.
package logring

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/text"
)

const (
	// mostLines is the number of lines that are kept.
	mostLines = 1000
	// lineBytes is the largest size of a line.
	lineBytes = 2 << 10
)

// Ring is safe for concurrent use. The zero value is ready.
type Ring struct {
	mu sync.Mutex
	// The following fields are guarded by mu. lines has the last lines; once it is full, next is
	// the index of the oldest one. formatted is the line that is being written.
	lines     []line
	next      int
	formatted bytes.Buffer
}

type line struct {
	time  time.Time
	level slog.Level
	text  string
}

// Logger returns a logger that writes to another one, and keeps its lines in the ring.
func (r *Ring) Logger(to *slog.Logger) *slog.Logger {
	format := slog.NewTextHandler(&r.formatted, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
			return slog.Attr{}
		}
		return a
	}})
	return slog.New(&handler{ring: r, to: to.Handler(), format: format})
}

// Last returns the last lines, oldest first: at most limit, 0 means all.
func (r *Ring) Last(limit int) []*millracev1.LogLine {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.lines)
	if limit <= 0 || limit > n {
		limit = n
	}
	out := make([]*millracev1.LogLine, limit)
	for i := range out {
		l := r.lines[(r.next+n-limit+i)%n]
		out[i] = &millracev1.LogLine{Time: timestamppb.New(l.time), Level: l.level.String(), Text: l.text}
	}
	return out
}

// handler writes to the next handler and to the ring.
type handler struct {
	ring       *Ring
	to, format slog.Handler
}

func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.to.Enabled(ctx, level)
}

func (h *handler) Handle(ctx context.Context, record slog.Record) error {
	h.keep(ctx, record)
	return h.to.Handle(ctx, record)
}

func (h *handler) keep(ctx context.Context, record slog.Record) {
	r := h.ring
	r.mu.Lock()
	defer r.mu.Unlock()
	r.formatted.Reset()
	if h.format.Handle(ctx, record) != nil {
		return // a buffer does not fail
	}
	l := line{record.Time, record.Level, text.Cut(strings.TrimSpace(r.formatted.String()), lineBytes)}
	if len(r.lines) < mostLines {
		r.lines = append(r.lines, l)
		return
	}
	r.lines[r.next] = l
	r.next = (r.next + 1) % mostLines
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.ring, h.to.WithAttrs(attrs), h.format.WithAttrs(attrs)}
}

func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.ring, h.to.WithGroup(name), h.format.WithGroup(name)}
}
