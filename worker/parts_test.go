package worker

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
)

func TestClosePartsInReverseAfterOneFailsToOpen(t *testing.T) {
	failed := errors.New("no room")
	var calls []string
	opens := func(name string, err error) part {
		return part{name, func(context.Context) (func() error, error) {
			calls = append(calls, "open "+name)
			return func() error { calls = append(calls, "close "+name); return nil }, err
		}}
	}
	var open undo
	table := []part{opens("memory", nil), opens("store", nil), opens("listener", failed), opens("paths", nil)}
	if err := open.parts(t.Context(), table, slog.New(slog.DiscardHandler)); !errors.Is(err, failed) {
		t.Errorf("opening ended with %v, want %v", err, failed)
	}
	if err := errors.Join(open.close(), open.close()); err != nil {
		t.Error(err)
	}
	if want := []string{"open memory", "open store", "open listener", "close store", "close memory"}; !slices.Equal(calls, want) {
		t.Errorf("calls %q, want %q", calls, want)
	}
}
