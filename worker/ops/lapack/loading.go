package lapack

// Loading is a library that is being searched for and loaded, beside the rest of a program's start.
// A nil Loading is finished and has no library.
type Loading struct {
	done    chan struct{} // closed when the fields below are set
	library *Library
	err     error
}

// Start begins to find the library. The search ends by itself: nothing waits for it but callers of
// Library.
func (f Finder) Start() *Loading {
	l := &Loading{done: make(chan struct{})}
	go func() {
		defer close(l.done)
		l.library, l.err = f.Find()
	}()
	return l
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
