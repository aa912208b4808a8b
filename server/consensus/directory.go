package consensus

import (
	"errors"
	"io/fs"
	"syscall"
)

// DirectoryError says that a peer cannot go on with its directory, and that a process that is
// started again with it could not either: it was removed from the peers, another program wrote the
// directory, or something in it is missing or damaged.
type DirectoryError struct{ error }

// Unwrap returns the cause.
func (e DirectoryError) Unwrap() error { return e.error }

// ErrRemoved ends a peer that a leader has removed.
var ErrRemoved error = DirectoryError{errors.New("peer: this scheduler was removed from the peers: stop it; to add it again, move its directory away, and call \"millrace peers add\"")}

// unusable returns a DirectoryError, or the error itself if the operating system has refused
// something, which may pass.
func unusable(err error) error {
	if refused := syscall.Errno(0); errors.As(err, &refused) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return DirectoryError{err}
}
