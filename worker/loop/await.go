package loop

import (
	"slices"
	"time"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/notify"
	"github.com/millrace/millrace/worker/lifecycle"
)

// knownAfter is how long the request of a reader is kept while its attempt is unknown here: the
// assignment may still be on its way. After that the reader is told that the object will not be
// made here.
const knownAfter = 2 * time.Second

// awaits is the owner's record of completion notifications between workers: subscriptions of this
// worker at peers, and of peers here.
type awaits struct {
	// waiting are the attempts that wait for each object of a peer. Some of the attempts may have
	// ended.
	waiting map[ledger.ObjectID][]*attempt
	// readers are the peers that subscribed to each object that is made here.
	readers map[ledger.ObjectID][]reader
}

// reader is one subscription of a peer. since is the time when it arrived.
type reader struct {
	*notify.Reader
	since time.Time
}

// These types are posted to the inbox.
type (
	heard []notify.Word
	asked struct {
		reader *notify.Reader
		asks   []notify.Ask
	}
	left struct{ reader *notify.Reader }
)

// Heard queues completion notifications from peers; see notify.Config. Handle processes them.
func (w *Worker) Heard(words []notify.Word) { w.put(heard(words)) }

// Asked queues the subscriptions of a peer. Handle processes them.
func (w *Worker) Asked(r *notify.Reader, asks []notify.Ask) { w.put(asked{r, asks}) }

// Handle processes the notifications and subscriptions that Heard and Asked have queued, unless
// another goroutine is the owner: then that one does.
func (w *Worker) Handle() {
	if w.ownForAMoment() {
		w.signal()
	}
}

// Left says that a peer's connection has ended: its subscriptions are dropped.
func (w *Worker) Left(r *notify.Reader) { w.post(left{r}) }

// early lists the inputs of an assignment that are not made yet: makers are the attempts on this
// worker that will make inputs, awaited are the objects that peers will make. Both are empty if the
// assignment can be admitted at once.
func (w *Worker) early(pb *workerv1.Assignment) (makers []lifecycle.Ref, awaited []lifecycle.Awaited) {
	for _, in := range pb.GetInputs() {
		if !in.GetPending() {
			continue
		}
		id := inputID(in)
		ref := lifecycle.Ref{Task: id.Task, Attempt: id.Generation}
		_, here := w.config.Store.Lookup(id)
		switch {
		case here && w.attempts[ref] == nil:
		case len(in.GetHolders()) == 0 || in.GetHolders()[0] == w.self.Load():
			// The result may be stored here before its attempt has ended; the attempt is waited
			// for.
			makers = append(makers, ref)
		default:
			awaited = append(awaited, lifecycle.Awaited{Object: lifecycle.Object(id), Peer: ids.WorkerID(in.GetHolders()[0])})
		}
	}
	return makers, awaited
}

// await subscribes to the completion of an object at the peer that makes it.
func (w *Worker) await(x lifecycle.Awaited) lifecycle.Event {
	peer, known := w.peers[x.Peer]
	if !known || w.config.Herald == nil {
		return lifecycle.NeverMade{Object: x.Object}
	}
	w.config.Herald.Await(peer, transfer.Ref{Task: x.Object.Task, Generation: x.Object.Generation})
	return nil
}

func (w *Worker) unawait(x lifecycle.Awaited) {
	delete(w.awaits.waiting, ledger.ObjectID(x.Object))
	if peer, known := w.peers[x.Peer]; known && w.config.Herald != nil {
		w.config.Herald.Unawait(peer, transfer.Ref{Task: x.Object.Task, Generation: x.Object.Generation})
	}
}

// hear handles a completion notification: it enters size and inline value into the waiting
// assignments and steps the machine.
func (w *Worker) hear(word *notify.Word) {
	id := ledger.ObjectID{Task: word.Ref.Task, Generation: word.Ref.Generation}
	waiting := w.awaits.waiting[id]
	delete(w.awaits.waiting, id)
	if word.Never {
		w.step(lifecycle.NeverMade{Object: lifecycle.Object(id)})
		return
	}
	for _, a := range waiting {
		for _, in := range a.pb.GetInputs() {
			if inputID(in) == id {
				in.Pending, in.Bytes, in.InlineResult = false, word.Bytes, word.Inline
			}
		}
	}
	w.step(lifecycle.Made{Object: lifecycle.Object(id)})
}

// ask handles a subscription of a peer (or its end). If the object is here, the notification is
// sent at once.
func (w *Worker) ask(r *notify.Reader, x notify.Ask) {
	id := ledger.ObjectID{Task: x.Ref.Task, Generation: x.Ref.Generation}
	if x.End {
		w.awaits.drop(id, r)
		return
	}
	if o, here := w.config.Store.Lookup(id); here && w.attempts[lifecycle.Ref{Task: id.Task, Attempt: id.Generation}] == nil {
		word := notify.Word{Ref: x.Ref, Bytes: o.Bytes()}
		if !o.HasPlace() && len(o.Header) <= int(w.inlineBytes.Load()) {
			word.Bytes, word.Inline = uint64(len(o.Header)), o.Header
		}
		w.config.Herald.Tell(r, word)
		return
	}
	w.awaits.readers[id] = append(w.awaits.readers[id], reader{r, time.Now()})
}

// tell notifies the subscribed readers of a result that was just made.
func (w *Worker) tell(r *workerv1.TaskReport) {
	id := ledger.ObjectID{Task: ids.TaskID(r.GetTaskId()), Generation: ids.Attempt(r.GetAttempt())}
	readers := w.awaits.readers[id]
	if len(readers) == 0 {
		return
	}
	delete(w.awaits.readers, id)
	word := notify.Word{Ref: transfer.Ref{Task: id.Task, Generation: id.Generation}, Bytes: r.GetOutputBytes(), Inline: r.GetInlineResult()}
	for _, x := range readers {
		w.config.Herald.Tell(x.Reader, word)
	}
}

// expireReaders answers "never" to readers whose attempt has been unknown here for longer than
// knownAfter.
func (w *Worker) expireReaders(now time.Time) {
	// order-free: each reader is answered independently.
	for id, readers := range w.awaits.readers {
		if w.attempts[lifecycle.Ref{Task: id.Task, Attempt: id.Generation}] != nil {
			continue
		}
		for _, x := range readers {
			if now.Sub(x.since) > knownAfter {
				w.awaits.drop(id, x.Reader)
				w.config.Herald.Tell(x.Reader, notify.Word{Ref: transfer.Ref{Task: id.Task, Generation: id.Generation}, Never: true})
			}
		}
	}
}

// drop removes the subscription of one reader to one object.
func (a *awaits) drop(id ledger.ObjectID, r *notify.Reader) {
	rest := slices.DeleteFunc(slices.Clone(a.readers[id]), func(x reader) bool { return x.Reader == r })
	if len(rest) == 0 {
		delete(a.readers, id)
	} else {
		a.readers[id] = rest
	}
}

// dropAll removes all subscriptions of a reader.
func (a *awaits) dropAll(r *notify.Reader) {
	// order-free: the objects are independent of each other.
	for id := range a.readers {
		a.drop(id, r)
	}
}
