package loop

import (
	"context"
	"time"

	"github.com/millrace/millrace/server/schedapi"
)

// Flat combining. Each hop between goroutines costs a large part of the time that the scheduler
// needs for a short report. So when the loop sleeps, the stream's goroutine that received the
// report takes the lock (owning) and steps the machine itself. Timers and catalogue commits stay
// with the loop: if one becomes due before the loop's alarm, the loop is woken.

// maxDriven is the largest number of reports in a message that the stream's goroutine handles
// itself. With more reports the loop's goroutine does the work, in parallel with the streams.
const maxDriven = 4

// drive handles one message of a worker: at once if the loop is idle, else through the mailbox.
// Messages of one stream keep their order: while one of them waits in the mailbox (posted > 0), the
// next ones are posted, too.
func (s *session) drive(ctx context.Context, said schedapi.Inbound) error {
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
			default: // the loop is awake
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
