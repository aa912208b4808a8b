package transfer_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/millrace/millrace/transfer"
)

// late is a context whose deadline has passed and whose timer has not fired yet.
//
//nolint:containedctx // it is a context itself
type late struct{ context.Context }

func (late) Deadline() (time.Time, bool) { return time.Now().Add(-time.Microsecond), true }

func TestADeadlineThatHasPassedCountsBeforeItsTimerFires(t *testing.T) {
	if err := transfer.ContextErr(late{t.Context()}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	early, cancel := context.WithTimeout(t.Context(), time.Hour)
	if err := transfer.ContextErr(early); err != nil {
		t.Errorf("long before the deadline: %v", err)
	}
	cancel()
	if err := transfer.ContextErr(early); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
