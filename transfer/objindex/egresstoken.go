package objindex

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/monotonic"
)

// EgressToken is advice on the use of a link: one word that all readers of a lender share. It names
// the reader that now reads large frames from the lender. The copy engine of a reading device
// carries out its copies one after the other. So without the token several readers of one source
// each get a part of its link while the links of other sources are idle. On four H200s this loses a
// third of the rate of an all-to-all, and the token restores it (docs/adr/0007).
//
// The token is advisory. A reader that has waited long enough reads without it, and the token
// expires unless its holder extends it. So a reader that dies or writes an invalid word costs the
// others only time.
type EgressToken struct {
	words words
	owner uint64
	// held is the word that this reader wrote last.
	held uint64
}

// The token is stored in one 64-bit word. The upper bits are the expiry time in units of 16 µs of
// CLOCK_MONOTONIC, which all processes of the host share. The lower 16 bits are the number of the
// holder. 0: the token is free.
const (
	ownerBits = 16
	tokenUnit = 16 * time.Microsecond
)

// newEgressToken creates the file of a free token.
func newEgressToken() (*os.File, error) {
	file, err := sealed("millrace-egress-token", pageBytes)
	if err != nil {
		return nil, err
	}
	if err := seal(file, unix.F_SEAL_SEAL); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// OpenEgressToken maps a lender's token. owner distinguishes this reader from the lender's other
// readers. The caller keeps ownership of the descriptor.
func OpenEgressToken(file *os.File, owner uint64) (*EgressToken, error) {
	w, err := mapFile(file, pageBytes, true)
	if err != nil {
		return nil, fmt.Errorf("egress token: %w", err)
	}
	return &EgressToken{words: w, owner: owner%(1<<ownerBits-1) + 1}, nil
}

func tokenWord(until time.Time, owner uint64) uint64 {
	return uint64(max(monotonic.Of(until), 0)/monotonic.Time(tokenUnit))<<ownerBits | owner
}

// Acquire acquires the token until the given time, or extends it, and reports whether this reader
// holds it. It succeeds if the token is free, expired, or already held by this reader.
func (t *EgressToken) Acquire(now, until time.Time) bool {
	w, next := t.words.load(0), tokenWord(until, t.owner)
	if w != 0 && w != t.held && w>>ownerBits >= tokenWord(now, 0)>>ownerBits {
		return false
	}
	if !t.words.swap(0, w, next) {
		return false
	}
	t.held = next
	return true
}

// Release releases the token if this reader still holds it.
func (t *EgressToken) Release() {
	if t.held != 0 {
		t.words.swap(0, t.held, 0)
		t.held = 0
	}
}

// Close releases the token and unmaps it.
func (t *EgressToken) Close() error {
	t.Release()
	return t.words.unmap()
}
