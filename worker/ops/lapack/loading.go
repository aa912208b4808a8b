package lapack

import (
	"context"
	"errors"
)

// errStopped is the cause of a search that Stop has ended.
var errStopped = errors.New("the search for a library of BLAS and LAPACK was stopped")

// Loading is a library that is being searched for and loaded, beside the rest of a program's start.
// A nil Loading is finished and has no library.
type Loading struct {
	cancel  context.CancelCauseFunc
	done    chan struct{} // closed when the fields below are set
	library *Library
	err     error
}

// Start begins to find the library. The caller calls Stop when it needs the library no longer.
func (f Finder) Start(ctx context.Context) *Loading {
	ctx, cancel := context.WithCancelCause(ctx)
	l := &Loading{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		l.library, l.err = f.Find(ctx)
	}()
	return l
}

// Stop ends the search, with the Python that it asks, and returns when nothing of it runs.
func (l *Loading) Stop() {
	l.cancel(errStopped)
	<-l.done
}

// Library waits until the search has ended, and returns what Find returned.
func (l *Loading) Library() (*Library, error) {
	if l == nil {
		return nil, nil
	}
	<-l.done
	return l.library, l.err
}

// Loaded returns the library, or nil if there is none. It waits as Library does.
func (l *Loading) Loaded() *Library {
	library, _ := l.Library() // the error was reported at the start
	return library
}
