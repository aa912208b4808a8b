package board

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/monotonic"
)

// Turn is a word that all readers of a lender share: who of them reads large frames
// from it now. Device copies run one after the other on the device that reads, and
// several readers of one source each get a part of its link while the links of other
// sources lie idle: on four H200s a third of the rate of an all-to-all is lost to
// that, and given back by taking turns (docs/adr/0007).
//
// A turn is advice. A reader that has waited long enough reads without it, and a turn
// ends by itself when its holder has not prolonged it. So a reader that dies, or writes
// an invalid word, costs the others time and nothing else.
type Turn struct {
	words words
	owner uint64
	// taken is the word that we wrote last.
	taken uint64
}

// A turn is stored in one 64-bit word: the time at which it ends, in units of 16 µs of CLOCK_MONOTONIC, which all
// processes of the host share, in the upper bits; a number for its holder in the lower 16 bits. 0: the turn is free.
const (
	ownerBits = 16
	turnUnit  = 16 * time.Microsecond
)

// newTurn makes the file of a turn that is free.
func newTurn() (*os.File, error) {
	file, err := sealed("millrace-turn", pageBytes)
	if err != nil {
		return nil, err
	}
	if err := seal(file, unix.F_SEAL_SEAL); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// OpenTurn maps a lender's turn; owner tells us from its other readers. The
// descriptor stays the caller's.
func OpenTurn(file *os.File, owner uint64) (*Turn, error) {
	w, err := mapFile(file, pageBytes, true)
	if err != nil {
		return nil, fmt.Errorf("turn: %w", err)
	}
	return &Turn{words: w, owner: owner%(1<<ownerBits-1) + 1}, nil
}

func turnWord(until time.Time, owner uint64) uint64 {
	return uint64(max(monotonic.Of(until), 0)/monotonic.Time(turnUnit))<<ownerBits | owner
}

// Take takes the turn until the given time, or prolongs it, and says whether it is
// ours.
func (t *Turn) Take(now, until time.Time) bool {
	w, next := t.words.load(0), turnWord(until, t.owner)
	if w != 0 && w != t.taken && w>>ownerBits >= turnWord(now, 0)>>ownerBits {
		return false
	}
	if !t.words.swap(0, w, next) {
		return false
	}
	t.taken = next
	return true
}

// Give ends our turn, if it still is.
func (t *Turn) Give() {
	if t.taken != 0 {
		t.words.swap(0, t.taken, 0)
		t.taken = 0
	}
}

// Close ends the mapping.
func (t *Turn) Close() error {
	t.Give()
	return t.words.unmap()
}
