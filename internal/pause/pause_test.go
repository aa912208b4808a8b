package pause_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/pause"
)

func TestForWaitsUnlessTheContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		if err := pause.For(t.Context(), time.Hour); err != nil || time.Since(begin) != time.Hour {
			t.Errorf("it waits for %s, %v", time.Since(begin), err)
		}
		why := errors.New("why")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(why) })
		begin = time.Now()
		if err := pause.For(ctx, time.Hour); !errors.Is(err, why) || time.Since(begin) != time.Second {
			t.Errorf("with a context that ends it waits for %s, %v", time.Since(begin), err)
		}
	})
}
