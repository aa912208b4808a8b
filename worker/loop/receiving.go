package loop

import (
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// receiving hears what the scheduler says in a session. One goroutine at a time does. It also carries out the first fetch
// that follows from a short message: until another goroutine has been woken for that, this one has found the object and
// begun to copy it, most of all on processors that had nothing to do for a while. Before such a fetch waits for long,
// another goroutine goes on receiving, and this one ends with the fetch.
type receiving struct {
	worker  *Worker
	stream  millracev1.WorkerService_SessionClient
	session uint64
	// ended has room for one: why nobody receives any more.
	ended chan error
}

// run receives until the stream ends, or another goroutine does so.
func (r *receiving) run() {
	w := r.worker
	for {
		m, err := r.stream.Recv()
		switch {
		case err != nil:
			r.ended <- err
			return
		case m.GetReregister():
			w.post(message{r.session, m})
			r.ended <- errReregister
			return
		case len(m.GetAssignments()) > maxDriven:
			w.post(message{r.session, m})
			continue
		}
		f := w.driveAndTake(message{r.session, m})
		if f == nil {
			continue
		}
		replaced := false
		f.leave = func() {
			replaced = true
			f.catchUp()
			go r.run()
		}
		f.carryOut()
		if replaced {
			return
		}
		f.catchUp()
	}
}
