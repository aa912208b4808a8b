// Package mishap is an Adapter: a panic in a goroutine that serves one connection or one request ends that, and not the
// process, which has the results of others in its memory.
package mishap

import (
	"fmt"
	"log/slog"
	"runtime/debug"
)

// Caught is deferred by the goroutine that may panic. A panic is logged with its stack, as one of what is named, and end is
// called with an error that says so; end may be nil. Without a panic nothing happens.
func Caught(log *slog.Logger, what string, end func(error)) {
	r := recover()
	if r == nil {
		return
	}
	if log == nil {
		log = slog.Default()
	}
	log.Error("a panic was caught", "in", what, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
	if end != nil {
		end(fmt.Errorf("internal error in %s: %v; the log of the worker has more", what, r))
	}
}
