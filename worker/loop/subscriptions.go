package loop

import (
	"time"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/notify"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/lifecycle"
)

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
	if peer := w.peers.Peer(x.Peer); peer.Address != "" && w.config.Notifier != nil {
		w.config.Notifier.Unsubscribe(peer, transfer.Ref{Task: x.Object.Task, Generation: x.Object.Generation})
	}
}

// made converts a completion notification.
func made(x *notify.Completion) lifecycle.Event {
	o := lifecycle.Object{Task: x.Ref.Task, Generation: x.Ref.Generation}
	if x.Unavailable {
		return lifecycle.NeverMade{Object: o}
	}
	return lifecycle.Made{Object: o, Bytes: x.Bytes, Inline: x.Inline}
}

// enterInput enters the value of an object as an input of an attempt that has waited for it.
func (a *attempt) enterInput(e lifecycle.EnterInput) {
	a.known = time.Now()
	for i := range a.inputs {
		if x := a.in(i).Object; listOf(ledger.ObjectID(x)) == ledger.ObjectID(e.Object) {
			a.inputs[i] = narrowed(device.Input{Header: e.Inline}, x.Item)
		}
	}
}

// ask converts a subscription of a peer, or its end.
func (w *Worker) ask(s *notify.Subscriber, x notify.Request) lifecycle.Event {
	o := lifecycle.Object{Task: x.Ref.Task, Generation: x.Ref.Generation}
	if x.Cancel {
		return lifecycle.Unasked{Object: o, By: s}
	}
	_, here := w.config.Store.Lookup(ledger.ObjectID(o))
	return lifecycle.Asked{Object: o, By: s, Here: here}
}

// notify tells a subscriber that an object is here, or that it will not be made here.
func (w *Worker) notify(e lifecycle.Notify) {
	completion := notify.Completion{Ref: transfer.Ref(e.Object), Unavailable: true}
	if o, here := w.config.Store.Lookup(ledger.ObjectID(e.Object)); here && !e.Unavailable {
		completion.Bytes, completion.Unavailable = o.Bytes(), false
		if !o.HasPlace() && len(o.Header) <= int(w.inlineBytes) {
			completion.Bytes, completion.Inline = uint64(len(o.Header)), o.Header
		}
	}
	w.config.Notifier.Publish(e.To.(*notify.Subscriber), completion)
}

// publish notifies the subscribers of a result that was just made.
func (w *Worker) publish(r *workerv1.TaskReport, to []lifecycle.Subscriber) {
	ref := transfer.Ref{Task: ids.TaskID(r.GetTaskId()), Generation: ids.Attempt(r.GetAttempt())}
	for _, x := range to {
		w.config.Notifier.Publish(x.(*notify.Subscriber), notify.Completion{Ref: ref, Bytes: r.GetOutputBytes(), Inline: r.GetInlineResult()})
	}
}
