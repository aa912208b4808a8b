package loop

import (
	"log/slog"
	"slices"
	"testing"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/worker/workertest"
)

// A worker keeps functions when its session ends. The scheduler may have taken it for lost in the
// meantime, and does not know then what it has.
func TestARegistrationListsTheFunctions(t *testing.T) {
	w := New(Config{Registration: &workerv1.Registration{Slots: 1}, Sessions: SessionsBy(nil), Native: new(handSlots), Store: workertest.NewStore(t, 1<<20), Log: slog.New(slog.DiscardHandler)})
	w.open()
	hashes := [][]byte{make([]byte, 32), make([]byte, 32)}
	hashes[0][0], hashes[1][0] = 2, 1
	w.scheduler(&workerv1.SessionResponse{
		Registered: &workerv1.Registered{WorkerId: 1, Life: 7},
		Functions:  []*millracev1.Function{{Hash: hashes[0]}, {Hash: hashes[1]}},
	})
	if has := w.open().GetFunctions(); len(has) != 2 || !slices.Equal(has[0], hashes[1]) || !slices.Equal(has[1], hashes[0]) {
		t.Errorf("it registers with the functions %x", has)
	}
	w.scheduler(&workerv1.SessionResponse{Registered: &workerv1.Registered{WorkerId: 2, Life: 7}, DroppedFunctions: hashes[:1]})
	if has := w.open().GetFunctions(); len(has) != 1 || !slices.Equal(has[0], hashes[1]) {
		t.Errorf("it registers with the functions %x, and was told to forget one", has)
	}
}
