package loop

import (
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
)

// receiving receives the messages of the scheduler in a session. One goroutine at a time does this.
// It also carries out the first fetch that results from a short message: it has found the object
// and begun to copy it before another goroutine could have been woken, especially if the processors
// were idle. Before such a fetch waits for long, another goroutine continues to receive, and this
// one ends with the fetch.
type receiving struct {
	worker  *Worker
	stream  workerv1.WorkerService_SessionClient
	session uint64
	// ended has room for one value: the reason why receiving has ended.
	ended chan error
}

// run receives until the stream ends or another goroutine has taken over.
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
		case len(m.GetAssignments()) > maxInlineAssignments:
			w.post(message{r.session, m})
			continue
		}
		fetch, wake := w.stepInlineAndTake(message{r.session, m})
		if fetch == nil {
			continue
		}
		replaced := false
		fetch(func() {
			replaced = true
			w.catchUp(wake)
			go r.run()
		})
		if replaced {
			return
		}
		w.catchUp(wake)
	}
}
