package loop

import (
	"slices"
	"time"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/notify"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/lifecycle"
)

// subscriptions is the owner's record of completion notifications between workers: subscriptions of
// this worker at peers, and of peers here.
type subscriptions struct {
	// waiting are the attempts that wait for each object of a peer. Some of the attempts may have
	// ended.
	waiting map[ledger.ObjectID][]*attempt
	// subscribers are the peers that subscribed to each object that is made here.
	subscribers map[ledger.ObjectID][]subscriber
}

// subscriber is one subscription of a peer. since is the time when it arrived.
type subscriber struct {
	*notify.Subscriber
	since time.Time
}

// These types are posted to the inbox.
type (
	completed []notify.Completion
	requested struct {
		subscriber *notify.Subscriber
		requests   []notify.Request
	}
	left struct{ subscriber *notify.Subscriber }
)

// Completed queues completion notifications from peers; see notify.Config. Handle processes them.
func (w *Worker) Completed(completions []notify.Completion) { w.put(completed(completions)) }

// Requested queues the subscriptions of a peer. Handle processes them.
func (w *Worker) Requested(s *notify.Subscriber, requests []notify.Request) {
	w.put(requested{s, requests})
}

// Handle processes the notifications and subscriptions that Completed and Requested have queued,
// unless another goroutine is the owner: then that one does.
func (w *Worker) Handle() {
	if w.tryStepInline() {
		w.signal()
	}
}

// Left says that a peer's connection has ended: its subscriptions are dropped.
func (w *Worker) Left(s *notify.Subscriber) { w.post(left{s}) }

// early enters what will make the inputs of an assignment that are not made yet: attempts on this
// worker, or peers.
func (w *Worker) early(a *attempt, pb *workerv1.Assignment) {
	for i, in := range pb.GetInputs() {
		if !in.GetPending() {
			continue
		}
		x := a.in(i)
		id := listOf(ledger.ObjectID(x.Object))
		ref := lifecycle.Ref{Task: id.Task, Attempt: id.Generation}
		_, here := w.config.Store.Lookup(id)
		switch {
		case here && w.attempts[ref] == nil:
		case len(x.Holders) == 0 || x.Holders[0] == w.Self():
			// The result may be stored here before its attempt has ended; the attempt is waited
			// for.
			a.assigned.Makers = append(a.assigned.Makers, ref)
		default:
			if a.assigned.Awaited == nil {
				a.assigned.Awaited = make([]lifecycle.Awaited, 0, len(a.inputs)-i)
			}
			a.assigned.Awaited = append(a.assigned.Awaited, lifecycle.Awaited{Object: lifecycle.Object(id), Peer: x.Holders[0]})
		}
	}
}

// subscribe subscribes to the completion of an object at the peer that makes it.
func (w *Worker) subscribe(x lifecycle.Awaited) lifecycle.Event {
	peer := w.peers.Peer(x.Peer)
	if peer.Address == "" || w.config.Notifier == nil {
		return lifecycle.NeverMade{Object: x.Object}
	}
	w.config.Notifier.Subscribe(peer, transfer.Ref{Task: x.Object.Task, Generation: x.Object.Generation})
	return nil
}

func (w *Worker) unsubscribe(x lifecycle.Awaited) {
	delete(w.subscriptions.waiting, ledger.ObjectID(x.Object))
	if peer := w.peers.Peer(x.Peer); peer.Address != "" && w.config.Notifier != nil {
		w.config.Notifier.Unsubscribe(peer, transfer.Ref{Task: x.Object.Task, Generation: x.Object.Generation})
	}
}

// inputMade handles a completion notification: it enters an inline value into the attempts that
// wait, and steps the machine.
func (w *Worker) inputMade(completion *notify.Completion) {
	id := ledger.ObjectID{Task: completion.Ref.Task, Generation: completion.Ref.Generation}
	waiting := w.subscriptions.waiting[id]
	delete(w.subscriptions.waiting, id)
	if completion.Unavailable {
		w.step(lifecycle.NeverMade{Object: lifecycle.Object(id)})
		return
	}
	if len(completion.Inline) > 0 {
		for _, a := range waiting {
			a.known = time.Now()
			for i := range a.inputs {
				if x := a.in(i).Object; listOf(ledger.ObjectID(x)) == id {
					a.inputs[i] = narrowed(device.Input{Header: completion.Inline}, x.Item)
				}
			}
		}
	}
	w.step(lifecycle.Made{Object: lifecycle.Object(id), Bytes: completion.Bytes, Inline: len(completion.Inline) > 0})
}

// handleRequest handles a subscription of a peer (or its end). If the object is here, the
// notification is sent at once.
func (w *Worker) handleRequest(s *notify.Subscriber, x notify.Request) {
	id := ledger.ObjectID{Task: x.Ref.Task, Generation: x.Ref.Generation}
	if x.Cancel {
		w.subscriptions.drop(id, s)
		return
	}
	if o, here := w.config.Store.Lookup(id); here && w.attempts[lifecycle.Ref{Task: id.Task, Attempt: id.Generation}] == nil {
		completion := notify.Completion{Ref: x.Ref, Bytes: o.Bytes()}
		if !o.HasPlace() && len(o.Header) <= int(w.inlineBytes.Load()) {
			completion.Bytes, completion.Inline = uint64(len(o.Header)), o.Header
		}
		w.config.Notifier.Publish(s, completion)
		return
	}
	w.subscriptions.subscribers[id] = append(w.subscriptions.subscribers[id], subscriber{s, time.Now()})
}

// publish notifies the subscribers of a result that was just made.
func (w *Worker) publish(r *workerv1.TaskReport) {
	id := ledger.ObjectID{Task: ids.TaskID(r.GetTaskId()), Generation: ids.Attempt(r.GetAttempt())}
	subscribers := w.subscriptions.subscribers[id]
	if len(subscribers) == 0 {
		return
	}
	delete(w.subscriptions.subscribers, id)
	completion := notify.Completion{Ref: transfer.Ref{Task: id.Task, Generation: id.Generation}, Bytes: r.GetOutputBytes(), Inline: r.GetInlineResult()}
	for _, x := range subscribers {
		w.config.Notifier.Publish(x.Subscriber, completion)
	}
}

// expireSubscribers answers "unavailable" to subscribers whose attempt has been unknown here for
// longer than Config.SubscriptionWait.
func (w *Worker) expireSubscribers(now time.Time) {
	// order-free: each subscriber is answered independently.
	for id, subscribers := range w.subscriptions.subscribers {
		if w.attempts[lifecycle.Ref{Task: id.Task, Attempt: id.Generation}] != nil {
			continue
		}
		for _, x := range subscribers {
			if now.Sub(x.since) > w.config.SubscriptionWait {
				w.subscriptions.drop(id, x.Subscriber)
				w.config.Notifier.Publish(x.Subscriber, notify.Completion{Ref: transfer.Ref{Task: id.Task, Generation: id.Generation}, Unavailable: true})
			}
		}
	}
}

// drop removes the subscription of one subscriber to one object.
func (a *subscriptions) drop(id ledger.ObjectID, s *notify.Subscriber) {
	rest := slices.DeleteFunc(slices.Clone(a.subscribers[id]), func(x subscriber) bool { return x.Subscriber == s })
	if len(rest) == 0 {
		delete(a.subscribers, id)
	} else {
		a.subscribers[id] = rest
	}
}

// dropAll removes all subscriptions of a subscriber.
func (a *subscriptions) dropAll(s *notify.Subscriber) {
	// order-free: the objects are independent of each other.
	for id := range a.subscribers {
		a.drop(id, s)
	}
}
