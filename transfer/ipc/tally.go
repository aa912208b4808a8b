package ipc

import "time"

// The methods by which bytes are carried. inSteps are the pieces of a broadcast chain: these wait
// for each other, so their time says nothing about the link.
const (
	byEngine = iota
	byKernel
	inSteps
	methods
)

// tally measures a copy queue's rates for display. Nothing is decided by them.
type tally struct {
	// rates are in bytes per second, by method: first those that the link was proved with, then
	// moving averages.
	rates [methods]float64
	// since is the beginning of the batch that is under way: of all that is posted until the queue
	// is idle again. bytes are its bytes.
	since time.Time
	bytes [methods]uint64
}

const (
	// rateBytes is the least size of a batch that measures a rate. A smaller one measures latency.
	rateBytes = 4 << 20
	// rateWeight is the weight of one batch.
	rateWeight = 0.25
)

// add counts a post. idle: nothing else is under way.
func (t *tally) add(p *post, now time.Time, idle bool) {
	if idle {
		t.since = now
		t.drop()
	}
	switch {
	case p.pieces[0].step:
		t.bytes[inSteps] += p.bytes
	case p.slot >= 0:
		t.bytes[byKernel] += p.bytes
	default:
		t.bytes[byEngine] += p.bytes
	}
}

// end updates a rate if the batch that has ended was large and carried by one method.
func (t *tally) end(now time.Time) {
	took, all := now.Sub(t.since).Seconds(), t.bytes[byEngine]+t.bytes[byKernel]+t.bytes[inSteps]
	for method, bytes := range t.bytes {
		if bytes == all && bytes >= rateBytes && took > 0 {
			t.rates[method] += rateWeight * (float64(bytes)/took - t.rates[method])
		}
	}
	t.drop()
}

// drop leaves a batch out.
func (t *tally) drop() { t.bytes = [methods]uint64{} }
