package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
)

// LargeHeader is the smallest header without frames that is stored in the slab. MaxHeader is the
// largest header of an object without frames: messages to readers have room for it.
const (
	LargeHeader = 64 << 10
	MaxHeader   = 16 << 20
)

// headerWait is the longest wait for room for a large header: other objects may have to be written
// to disk first.
const headerWait = 10 * time.Second

// PutSmall stores an object without frames. If the header is large, it waits for room and fails if
// there is none. A large header that is here already stays unchanged: one attempt has one result.
func (s *Store) PutSmall(id ledger.ObjectID, header []byte) error { return s.put(0, id, header, false) }

// PutWithin is PutSmall, with room taken from a reservation if that has enough.
func (s *Store) PutWithin(r ledger.ReservationID, id ledger.ObjectID, header []byte) error {
	return s.put(r, id, header, false)
}

// PutWritten is PutSmall for an object that a client wrote: it cannot be read before Accept. It
// returns an error if the object exists already.
func (s *Store) PutWritten(id ledger.ObjectID, header []byte) error {
	return s.put(0, id, header, true)
}

func (s *Store) put(r ledger.ReservationID, id ledger.ObjectID, header []byte, written bool) error {
	if len(header) >= LargeHeader {
		err := s.putLarge(r, id, header, written)
		if !written && errors.Is(err, ledger.ErrDuplicate) {
			s.Restore(id)
		}
		if _, here := s.Lookup(id); here && !written && errors.Is(err, ledger.ErrDuplicate) {
			return nil
		}
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !written && id.Item != 0:
	case !written:
		s.latest[id.Task] = max(s.latest[id.Task], id.Generation)
	case s.here(id):
		return fmt.Errorf("store: object %s: %w", id, ledger.ErrDuplicate)
	default:
		s.written[id] = true
	}
	s.smallBytes += uint64(len(header)) - uint64(len(s.small[id]))
	s.small[id] = header
	return nil
}

// putLarge stores an object whose only frame is its header.
func (s *Store) putLarge(r ledger.ReservationID, id ledger.ObjectID, header []byte, written bool) error {
	n := uint64(len(header))
	if n > MaxHeader {
		return fmt.Errorf("store: object %s has a header of %d bytes without frames, and %d are allowed; put bulk into arrays or bytes", id, n, MaxHeader)
	}
	if s.Here(id) {
		return fmt.Errorf("store: object %s: %w", id, ledger.ErrDuplicate)
	}
	frames, err := s.Allocate(r, id, n)
	if errors.Is(err, ledger.ErrUnknown) || errors.Is(err, ledger.ErrOutgrown) {
		ctx, cancel := context.WithTimeoutCause(context.Background(), 2*headerWait, fmt.Errorf("nothing left within %v: %w", 2*headerWait, ledger.ErrNoRoom))
		defer cancel()
		// An ending task or fetch holds memory that others may wait for, so its request goes first.
		reserve := s.ReserveMore
		if written {
			reserve = s.ReserveWait
		}
		if r, err = reserve(ctx, TaskHolder(id.Task), []uint64{n}, headerWait); err != nil {
			return fmt.Errorf("store: no room for a header of %d bytes: %w", n, err)
		}
		defer s.Release(r)
		frames, err = s.Allocate(r, id, n)
	}
	if err != nil {
		return err
	}
	if to, ok := s.space.(memory.Staged); ok {
		err = to.WriteFrom(frames[0].Offset, header)
	} else {
		copy(s.View(frames[0]), header)
	}
	switch {
	case err != nil:
		s.Rebuild(r, id)
		return fmt.Errorf("store: header of object %s: %w", id, err)
	case written:
		return s.SealWritten(id, inFrame)
	}
	return s.Seal(id, inFrame)
}
