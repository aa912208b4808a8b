package loop

import (
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/notify"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/peers"
	"github.com/millrace/millrace/worker/store"
)

// subscriptions connects results that other workers wait for, here or there, with the machine.
type subscriptions struct {
	// notifier may be nil.
	notifier Notifier
	peers    *peers.Peers
	store    *store.Store
	// inlineBytes is the size of the largest result that is sent inline.
	inlineBytes uint32
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

// makers enters what will make the inputs of an assignment that are not made yet: attempts on this
// worker, whose number is self, or peers.
func (s *subscriptions) makers(a *attempt, pb *workerv1.Assignment, self ids.WorkerID, attempts map[lifecycle.Ref]*attempt) {
	for i, in := range pb.GetInputs() {
		if !in.GetPending() {
			continue
		}
		x := a.in(i)
		id := ledger.ObjectID(x.Object).Whole()
		ref := lifecycle.Ref{Task: id.Task, Attempt: id.Generation}
		_, here := s.store.Lookup(id)
		switch {
		case here && attempts[ref] == nil:
		case len(x.Holders) == 0 || x.Holders[0] == self:
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
func (s *subscriptions) subscribe(x lifecycle.Awaited) lifecycle.Event {
	peer := s.peers.Peer(x.Peer)
	if peer.Address == "" || s.notifier == nil {
		return lifecycle.NeverMade{Object: x.Object}
	}
	s.notifier.Subscribe(peer, transfer.Ref{Task: x.Object.Task, Generation: x.Object.Generation})
	return nil
}

func (s *subscriptions) unsubscribe(x lifecycle.Awaited) {
	if peer := s.peers.Peer(x.Peer); peer.Address != "" && s.notifier != nil {
		s.notifier.Unsubscribe(peer, transfer.Ref{Task: x.Object.Task, Generation: x.Object.Generation})
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

// ask converts a subscription of a peer, or its end.
func (s *subscriptions) ask(by *notify.Subscriber, x notify.Request) lifecycle.Event {
	o := lifecycle.Object{Task: x.Ref.Task, Generation: x.Ref.Generation}
	if x.Cancel {
		return lifecycle.Unasked{Object: o, By: by}
	}
	_, here := s.store.Lookup(ledger.ObjectID(o))
	return lifecycle.Asked{Object: o, By: by, Here: here}
}

// notify tells a subscriber that an object is here, or that it will not be made here.
func (s *subscriptions) notify(e lifecycle.Notify) {
	completion := notify.Completion{Ref: transfer.Ref(e.Object), Unavailable: true}
	if o, here := s.store.Lookup(ledger.ObjectID(e.Object)); here && !e.Unavailable {
		completion.Bytes, completion.Unavailable = o.Bytes(), false
		if !o.HasPlace() && len(o.Header) <= int(s.inlineBytes) {
			completion.Bytes, completion.Inline = uint64(len(o.Header)), o.Header
		}
	}
	s.notifier.Publish(e.To.(*notify.Subscriber), completion)
}

// publish notifies the subscribers of a result that was just made.
func (s *subscriptions) publish(r *workerv1.TaskReport, to []lifecycle.Subscriber) {
	ref := transfer.Ref{Task: ids.TaskID(r.GetTaskId()), Generation: ids.Attempt(r.GetAttempt())}
	for _, x := range to {
		s.notifier.Publish(x.(*notify.Subscriber), notify.Completion{Ref: ref, Bytes: r.GetOutputBytes(), Inline: r.GetInlineResult()})
	}
}

// flush sends the notifications that are queued.
func (s *subscriptions) flush() {
	if s.notifier != nil {
		s.notifier.Flush()
	}
}
