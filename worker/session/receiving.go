package session

import (
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
)

// receiving receives the messages of the scheduler in a session. One goroutine at a time does this.
// It also carries out the first fetch that results from a short message: it has found the object
// and begun to copy it before another goroutine could have been woken, especially if the processors
// were idle. Before such a fetch waits for long, another goroutine continues to receive, and this
// one ends with the fetch.
type receiving struct {
	sessions *Sessions
	stream   workerv1.WorkerService_SessionClient
	session  uint64
	// ended has room for one value: the reason why receiving has ended.
	ended chan error
}

// run receives until the stream ends or another goroutine has taken over.
func (r *receiving) run() {
	for {
		m, err := r.stream.Recv()
		if err != nil {
			r.ended <- err
			return
		}
		if m.GetReregister() {
			r.sessions.config.Tell(Message{r.session, m})
			r.ended <- errReregister
			return
		}
		fetch, after := r.sessions.config.Receive(Message{r.session, m})
		if fetch == nil {
			continue
		}
		replaced := false
		fetch(func() {
			replaced = true
			after()
			go r.run()
		})
		if replaced {
			return
		}
		after()
	}
}
