// Package mishap is an Adapter: it recovers a panic in a goroutine that serves one connection or
// one request. The panic ends that connection or request, but not the process, which holds results
// of other tasks in its memory.
package mishap

import (
	"fmt"
	"log/slog"
	"runtime/debug"
)

// Caught must be deferred by the goroutine that may panic. It recovers a panic, logs it with its
// stack and the name given as what, and calls end with an error; end may be nil. Without a panic it
// does nothing.
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
