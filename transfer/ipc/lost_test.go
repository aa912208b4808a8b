package ipc

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/millrace/millrace/memory"
)

// unasked is the event of a copy whose state the driver does not report.
type unasked struct {
	*done
	err *error
}

func (u unasked) Query() (bool, error) {
	if *u.err != nil {
		return false, *u.err
	}
	return u.done.Query()
}

func (u unasked) queue(fails *error) *copyQueue {
	cq := u.link.copyQueue()
	for kind := range cq.queues {
		for i, p := range cq.queues[kind].free {
			cq.queues[kind].free[i].event = unasked{p.event.(*done), fails}
		}
	}
	cq.submit = func(p *post) error {
		p.event.(unasked).submit(p)
		return nil
	}
	return cq
}

func (k *link) pieces(objects int) (*group, []piece) {
	var c cutting
	g := newGroup()
	for i := range objects {
		c.large(uint64(i)<<30, 0, 64<<20, chunkBytes, g, i)
	}
	return g, c.pieces
}

func newLink() *link {
	return &link{now: time.Unix(1, 0), rate: 100e9, sways: []float64{0}, late: []time.Duration{0}}
}

// TestACopyThatNobodyCanAskAboutIsOverWhenItsStreamIs: the memory that the copy writes to is given
// to other objects as soon as the copy counts as over. So it must not count as over before its
// stream has finished. The queue continues afterwards, unless the device is lost.
func TestACopyThatNobodyCanAskAboutIsOverWhenItsStreamIs(t *testing.T) {
	for name, lost := range map[string]bool{"healthy": false, "lost": true} {
		t.Run(name, func(t *testing.T) {
			k, fails, tries := newLink(), error(nil), 0
			cq := unasked{&done{link: k}, nil}.queue(&fails)
			g, pieces := k.pieces(5)
			cq.quiet = func() (bool, error) {
				if g.open < window {
					t.Errorf("of %d that were posted %d are open when the streams have not been waited for", window, g.open)
				}
				if tries++; tries == 1 && !lost {
					return false, errors.New("the wait fails as well")
				}
				return lost, nil
			}
			cq.add(pieces)
			fails = errors.New("a query fails")
			for ended := 0; ended < 5; {
				spans, err := cq.wait(t.Context(), g, time.Minute)
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range spans {
					if ended += s.count; s.err == nil {
						t.Errorf("object %d is good", s.first)
					}
				}
			}
			if want := map[bool]int{false: 2, true: 1}[lost]; tries != want {
				t.Errorf("the streams were waited for %d times, not %d", tries, want)
			}
			fails = nil
			again, pieces := k.pieces(1)
			cq.add(pieces)
			spans, err := cq.wait(t.Context(), again, time.Minute)
			if err != nil || len(spans) != 1 || (spans[0].err != nil) != lost {
				t.Errorf("the next one: %v, %v", spans, err)
			}
		})
	}
}

// TestAPostThatWasNotRecordedIsNotAskedAbout: the event may still be that of the post before, which
// is over.
func TestAPostThatWasNotRecordedIsNotAskedAbout(t *testing.T) {
	k, fails, quiet := newLink(), error(nil), false
	cq := unasked{&done{link: k}, nil}.queue(&fails)
	cq.submit = func(*post) error { return errors.New("a record fails") }
	cq.quiet = func() (bool, error) { quiet = true; return false, nil }
	g, pieces := k.pieces(1)
	cq.add(pieces)
	if spans, err := cq.wait(t.Context(), g, time.Minute); err != nil || len(spans) != 1 || spans[0].err == nil || !quiet {
		t.Errorf("%v, %v, waited for: %v", spans, err, quiet)
	}
}

// TestAWaitBehindOtherFetchesIsNoStall: all fetches from one peer share a copy queue, and earlier
// posts on it may take longer than the stall timeout, as long as copies end.
func TestAWaitBehindOtherFetchesIsNoStall(t *testing.T) {
	k := newLink()
	k.rate = 64 << 20 // bytes per second
	cq := k.copyQueue()
	before, pieces := k.pieces(10)
	cq.add(pieces)
	g, pieces := k.pieces(1)
	cq.add(pieces)
	spans, err := cq.wait(t.Context(), g, 5*time.Second)
	if err != nil || len(spans) != 1 || spans[0].err != nil {
		t.Errorf("%v, %v with %d open before it", spans, err, before.open)
	}
}

// TestOneObjectOfManyFramesIsPostedInParts: a post keeps others from posting, and each copy takes
// the driver 3 µs.
func TestOneObjectOfManyFramesIsPostedInParts(t *testing.T) {
	k := newLink()
	cq := k.copyQueue()
	most := 0
	cq.submit = func(p *post) error {
		most = max(most, p.copies)
		p.event.(*done).submit(p)
		return nil
	}
	f := &fetch{path: &Path{}, group: newGroup(), enough: math.MaxUint64, memory: &mapping{queue: cq, chunk: chunkBytes}}
	var from []memory.Frame
	for i := range uint64(5000) {
		from = append(from, memory.Frame{Offset: 8192 * i, Bytes: 1000})
	}
	f.cut(0, from, from)
	cq.add(f.cutting.pieces)
	spans, err := cq.wait(t.Context(), f.group, time.Minute)
	if err != nil || len(spans) != 1 || spans[0].bytes != 5000*1000 || spans[0].count != 1 {
		t.Errorf("%v, %v", spans, err)
	}
	if most > maxCopies {
		t.Errorf("%d copies in one post, at most %d", most, maxCopies)
	}
}
