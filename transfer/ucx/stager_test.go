package ucx

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestSlotsGoToReadersInTurn compares the stager with a model: a list of requests, first come,
// first served. Readers ask, get, give back, keep slots for too long, and go, in any order.
func TestSlotsGoToReadersInTurn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const slots, limit = 3, 10 * time.Second
		s := stager{free: []int{0, 1, 2}}
		readers := []*conn{{token: 1}, {token: 2}, {token: 3}}
		now := time.Unix(1, 0)
		// waiting, copying and told are the requests of the model, by state, in their order.
		var waiting, copying, told []*staging
		returned := make(map[*conn]time.Time)
		without := func(list []*staging, keep func(*staging) bool) (out []*staging) {
			for _, x := range list {
				if keep(x) {
					out = append(out, x)
				}
			}
			return out
		}
		is := func(x *staging) func(*staging) bool { return func(y *staging) bool { return y != x } }
		held := func(n *conn) int {
			mine := func(x *staging) bool { return x.conn == n }
			return len(without(waiting, mine)) + len(without(copying, mine)) + len(without(told, mine))
		}
		lend := func() {
			for x := s.next(); x != nil; x = s.next() {
				if x != waiting[0] {
					t.Fatalf("request %d got a slot, request %d was first", x.request, waiting[0].request)
				}
				waiting, copying = waiting[1:], append(copying, x)
			}
			if len(waiting) > 0 && len(copying)+len(told) < slots {
				t.Fatalf("%d requests wait while slots are free", len(waiting))
			}
		}
		request := uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"ask": func(t *rapid.T) {
				n := rapid.SampledFrom(readers).Draw(t, "reader")
				request++
				x := &staging{conn: n, request: request}
				if took, room := s.ask(x), held(n) < maxStagings; took != room {
					t.Fatalf("with %d requests: taken %v", held(n), took)
				} else if took {
					waiting = append(waiting, x)
				}
				lend()
			},
			"copied": func(t *rapid.T) {
				if len(copying) == 0 {
					t.Skip()
				}
				x := rapid.SampledFrom(copying).Draw(t, "request")
				copying = without(copying, is(x))
				if x.conn.failure != nil || rapid.Bool().Draw(t, "the copy failed") {
					s.back(x)
				} else {
					s.told(x, now)
					told = append(told, x)
				}
				lend()
			},
			"give back": func(t *rapid.T) {
				n, slot := rapid.SampledFrom(readers).Draw(t, "reader"), rapid.Uint32Range(0, slots).Draw(t, "slot")
				mine := without(told, func(x *staging) bool { return x.conn == n && x.slot == int(slot) })
				x := s.find(n, slot)
				if (x != nil) != (len(mine) == 1) || x != nil && x != mine[0] {
					t.Fatalf("slot %d is %v, want %v", slot, x, mine)
				}
				if x != nil {
					s.returned(x, now)
					told = without(told, is(x))
					returned[n] = now
				}
				lend()
			},
			"go": func(t *rapid.T) {
				i := rapid.IntRange(0, len(readers)-1).Draw(t, "reader")
				n := readers[i]
				n.failure = fmt.Errorf("gone")
				s.forget(n)
				others := func(x *staging) bool { return x.conn != n }
				waiting, told = without(waiting, others), without(told, others)
				if n.stagings != held(n) {
					t.Fatalf("a reader that has gone has %d requests, want %d", n.stagings, held(n))
				}
				readers[i] = &conn{token: n.token}
				lend()
			},
			"time passes": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 15).Draw(t, "seconds")) * time.Second)
				late := without(told, func(x *staging) bool { return now.Sub(x.since) > limit && now.Sub(returned[x.conn]) > limit })
				if got := s.overdue(now, limit); len(got) != len(late) {
					t.Fatalf("%d readers are late, want %d", len(got), len(late))
				}
			},
			"": func(t *rapid.T) {
				used := make(map[int]bool)
				for _, x := range append(without(copying, func(*staging) bool { return true }), told...) {
					if used[x.slot] {
						t.Fatalf("slot %d is lent twice", x.slot)
					}
					used[x.slot] = true
				}
				if len(used)+len(s.free) != slots {
					t.Fatalf("%d slots are lent and %d free", len(used), len(s.free))
				}
				for _, n := range readers {
					if n.stagings != held(n) {
						t.Fatalf("reader %d has %d requests, want %d", n.token, n.stagings, held(n))
					}
				}
			},
		})
	})
}
