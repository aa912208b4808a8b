package loop

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/millrace/millrace/server/schedapi"
)

// Flat combining. Each hop between goroutines costs a large part of the time that the scheduler
// needs for a short call. So when the loop sleeps, the goroutine that brings a call or a report
// takes the lock (owning) and steps the machine itself. Timers, and the commits of the catalogue
// that are due at a certain time, stay with the loop: if one becomes due before the loop's alarm,
// the loop is woken. A call that must not return before its change is in the catalogue commits it
// itself.

// maxInlineReports is the largest number of reports in a message that the stream's goroutine
// handles itself. With more reports the loop's goroutine does the work, in parallel with the
// streams.
const maxInlineReports = 4

// tryStepInline runs a closure on the caller's goroutine if the loop is idle, and reports whether
// it did. It never overtakes a closure that was posted before.
func (l *Loop) tryStepInline(run func()) bool {
	if l.posted.Load() != 0 || !l.owning.TryLock() {
		return false
	}
	defer l.owning.Unlock()
	defer crashOnPanic()
	l.now = l.config.Clock()
	run()
	l.flushSessions()
	l.flushClients()
	if l.nextAlarm().Before(l.armed) {
		select {
		case l.wake <- struct{}{}:
		default: // The loop is woken already.
		}
	}
	return true
}

// crashOnPanic ends the process if the machine panics, as a panic on the loop's own goroutine does.
// The RPC adapter recovers panics of its goroutines, and half a step must not be followed by
// others.
func crashOnPanic() {
	if cause := recover(); cause != nil {
		stack := debug.Stack()
		go func() { panic(fmt.Sprintf("%v\n\n%s", cause, stack)) }()
		select {}
	}
}

// handle handles one message of a worker: at once if it is short and the loop is idle, else through
// the mailbox.
func (s *session) handle(ctx context.Context, message schedapi.Inbound) error {
	run := func() { s.loop.received(s, message) }
	if len(message.Reports) <= maxInlineReports && message.Stats == nil && s.loop.tryStepInline(run) {
		return nil
	}
	return s.loop.post(ctx, run)
}
