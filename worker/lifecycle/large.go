package lifecycle

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Copies of the inputs of an attempt may be larger than the slab, alone or with its result, while
// the attempt can run here if it reads them in the memory of peers. Such an attempt is large.
// Most inputs are copied for reasons that do not last or are only a matter of speed: the lender has
// little free memory, or has moved the object to a slower tier, or answers late; the object was
// leased often; the attempt has to wait for memory, and keeps nothing of others meanwhile; no
// executor has said yet whether it reads the memory of peers. For a large attempt, none of these is
// a reason to fail:
//
//   - It asks for leases whatever the sizes of the inputs and however often they were leased, and
//     says that it needs them.
//   - It asks again if a lender refuses for now or does not answer, until Config.MemoryWait is
//     over. Until then it ends the leases that it got: it keeps no memory of others meanwhile.
//   - If it waits for memory for its result, it ends its leases as well, and asks for them again
//     when the memory is granted. If it does not get them, it gives the memory back and begins
//     anew.
//   - If its holders do not answer any more, or do not have the object any more, the scheduler is
//     told that, and assigns the task again.
//
// It fails with OUT_OF_MEMORY if no lender can lend an input here, or if inputs do not come into
// the memory of their lenders within Config.MemoryWait.

// The pauses before a large attempt asks again: the first is about as long as a lender takes to
// bring a small object from a disk, and each is twice as long as the one before, up to the longest,
// so that many attempts do not keep a lender busy with refusals.
const (
	firstPause   = 5 * time.Millisecond
	longestPause = 200 * time.Millisecond
)

// maxReasons bounds the inputs that an error names.
const maxReasons = 3

// large is the state of a large attempt.
type large struct {
	// until is the time after which it does not ask again. pause is its next pause, and wake the
	// end of the present one.
	until, wake time.Time
	pause       time.Duration
	// rounds counts the requests for leases. In each one, the next holder of an input is asked.
	rounds int
	// answers are those of the last round, by input; nil: there was none.
	answers []LeaseAnswer
	// given are the inputs whose leases it gave up while it waits for memory.
	given []int
}

// tooLarge handles a request for memory that an empty slab could not grant. The attempt leaves its
// reservation if it can go on without, or has ended.
func (m *Machine) tooLarge(a *attempt) {
	if a.giveUpPlaces() {
		m.readmit(a)
		return
	}
	copied := m.copied(a)
	if len(copied) == 0 {
		return
	}
	if a.large == nil {
		a.large = &large{until: m.now.Add(m.config.MemoryWait), pause: firstPause}
		a.copies = false
		m.readmit(a)
		return
	}
	var lost []Unreachable
	for _, i := range copied {
		switch why, x := m.refusal(a, i); {
		case why == RefusedForNow && m.now.Before(a.large.until):
			m.pause(a)
			return
		case why == HolderLost:
			lost = append(lost, x)
		}
	}
	if len(lost) > 0 {
		m.log.add(a.ref, "inputs unreadable")
		m.withdraw(a)
		m.do(Report{Ref: a.ref, Outcome: InputUnreachable, Unreachable: lost})
	}
}

// copied returns the inputs that an attempt has to fetch and that may be readable at a peer.
func (m *Machine) copied(a *attempt) (inputs []int) {
	if (!m.config.Leases || a.replicates || a.mapsNothing) && !m.readsInPlace(a) {
		return nil
	}
	for i := range a.inputs {
		if in := &a.inputs[i]; in.use == useCopy && in.Size() > 0 && !in.below {
			inputs = append(inputs, i)
		}
	}
	return inputs
}

// refusal says why a large attempt has no lease of an input. x is the input as the scheduler is
// told of it, if a holder is lost.
func (m *Machine) refusal(a *attempt, i int) (why Refusal, x Unreachable) {
	in, l := &a.inputs[i], a.large
	if l.answers != nil {
		why = l.answers[i].Refusal
	}
	x.Object = in.Object
	if why == NotHeld {
		x.MissingAt = slices.Clone(in.Holders)
	} else {
		x.FailedAt = slices.Clone(in.Holders)
	}
	switch {
	case in.known == 0:
		return HolderLost, x
	case l.rounds < in.known || m.readsInPlace(a):
		return RefusedForNow, x
	case why == NotHeld:
		return HolderLost, x
	}
	return why, x
}

// pause admits a large attempt anew after a pause, in which it has nothing.
func (m *Machine) pause(a *attempt) {
	m.giveBack(a)
	l := a.large
	l.given = nil
	l.wake = m.now.Add(l.pause)
	l.pause = min(2*l.pause, longestPause)
	m.move(a, Pausing)
	m.pausing = append(m.pausing, a)
}

// endPauses admits the attempts whose pauses are over.
func (m *Machine) endPauses() {
	if len(m.pausing) == 0 {
		return
	}
	for _, a := range slices.Clone(m.pausing) {
		if !m.now.Before(a.large.wake) {
			m.endPause(a)
			m.admit(a)
		}
	}
}

func (m *Machine) endPause(a *attempt) {
	m.pausing = slices.DeleteFunc(m.pausing, func(b *attempt) bool { return a == b })
}

// giveUpLeases ends the leases of a large attempt, because it waits for memory. It gets them again
// when it has the memory.
func (m *Machine) giveUpLeases(a *attempt) {
	if a.large == nil || !a.leased || !a.uses(useLease) {
		return
	}
	for i := range a.inputs {
		if a.inputs[i].use == useLease {
			a.large.given = append(a.large.given, i)
		}
	}
	m.endLeases(a)
}

// regain requests the leases that a large attempt gave up for its wait for memory, which is over.
func (m *Machine) regain(a *attempt) {
	first := len(m.waysOut)
	m.waysOut = append(m.waysOut, make([]Way, len(a.inputs))...)
	ways := m.waysOut[first:len(m.waysOut):len(m.waysOut)]
	for _, i := range a.large.given {
		a.inputs[i].use, ways[i].Lease = useNone, true
	}
	m.move(a, Leasing)
	m.do(Lease{Ref: a.ref, Ways: ways, Round: a.large.rounds})
	a.large.rounds++
}

// regained goes on with a large attempt that has asked again for leases that it gave up.
func (m *Machine) regained(a *attempt) {
	l := a.large
	for _, i := range l.given {
		if a.inputs[i].use != useLease {
			l.until = m.now.Add(m.config.MemoryWait) // the wait for memory does not count
			m.pause(a)
			return
		}
	}
	l.given = nil
	m.advance(a)
}

// needs says why the request of an attempt for memory failed: message, and why its inputs were not
// read in place.
func (a *attempt) needs(message string) string {
	if a.large == nil {
		return message
	}
	var why []string
	for i := range a.large.answers {
		if x := &a.large.answers[i]; x.Why != "" && len(why) < maxReasons {
			why = append(why, fmt.Sprintf("input %d: %s", i, x.Why))
		}
	}
	if len(why) == 0 {
		return message
	}
	return message + "; the inputs could not be read in place either: " + strings.Join(why, "; ")
}

// checkLarge checks an attempt that waits for leases or pauses.
func (m *Machine) checkLarge(a *attempt) error {
	if (a.state == Pausing) != slices.Contains(m.pausing, a) {
		return fmt.Errorf("lifecycle: attempt %s is %s, among the pausing: %v", a.ref, a.state, a.state != Pausing)
	}
	regains := a.state == Leasing && a.large != nil && a.large.given != nil
	if (a.state == Pausing || a.state == Leasing && !regains) && (len(a.pinned)+len(a.missing) > 0 || a.reservation != nil || a.leased) {
		return fmt.Errorf("lifecycle: attempt %s is %s and has inputs, leases or memory", a.ref, a.state)
	}
	return nil
}

// Refusal says why there is no lease.
type Refusal uint8

// The values of Refusal.
const (
	// RefusedForGood: asking again is useless, or nobody was asked.
	RefusedForGood Refusal = iota
	// RefusedForNow: the lender may lend it later.
	RefusedForNow
	// HolderLost: the holder does not answer any more. NotHeld: it does not hold the object.
	HolderLost
	NotHeld
)

// LeaseAnswer is the answer to the request for a lease of one input.
type LeaseAnswer struct {
	Granted bool
	Refusal Refusal
	// Why is the text of the refusal, empty if there is none.
	Why string
}
