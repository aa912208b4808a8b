package loop

import (
	"context"
	"time"

	"github.com/millrace/millrace/server/front"
)

// A report of a few tasks that finds the loop asleep costs a hop between goroutines, which is a good part of what the
// scheduler takes for it. So the stream's goroutine that brings it carries it through by itself, unless somebody is at it.
// Time and the catalogue stay the loop's: it is woken when they are due earlier than it knows.

// maxDriven is how many reports a message has that its stream carries through itself. More of them are work, which the
// loop does beside the streams.
const maxDriven = 4

// drive is post by a session's stream, in order with what that stream has posted.
func (s *session) drive(ctx context.Context, said front.Inbound) error {
	l := s.loop
	if len(said.Reports) <= maxDriven && said.Stats == nil && len(l.mailbox) == 0 && s.posted.Load() == 0 && l.owning.TryLock() {
		defer l.owning.Unlock()
		l.now = time.Now()
		l.heard(s, said)
		l.flushSessions()
		l.flushClients()
		if l.nextAlarm().Before(l.armed) {
			select {
			case l.mailbox <- func() {}:
			default: // it is awake
			}
		}
		return nil
	}
	s.posted.Add(1)
	err := l.post(ctx, func() {
		s.posted.Add(-1)
		l.heard(s, said)
	})
	if err != nil {
		s.posted.Add(-1)
	}
	return err
}
