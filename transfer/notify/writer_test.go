package notify

import (
	"net"
	"slices"
	"testing"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/ring"
)

// A peer's requests may be handled before the connection to it is open: its ring is there first.
// All notifications that answer them arrive, although they go into the ring together.
func TestNotificationsOfBeforeTheConnectionArrive(t *testing.T) {
	file, err := ring.Make()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	open := func(first bool) *ring.End {
		end, err := ring.Open(file, first)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := end.Close(); err != nil {
				t.Error(err)
			}
		})
		return end
	}
	ours, theirs := open(true), open(false)
	conn, peer := net.Pipe()
	defer conn.Close()
	defer peer.Close()
	var w writer
	p := &publisher{subscribed: map[transfer.Ref]struct{}{}}
	var want []string
	for i, inline := range []string{"one", "", "three"} {
		ref := transfer.Ref{Task: ids.TaskID(i + 1), Generation: 1}
		if i != 1 { // the second is not wanted any more
			p.subscribed[ref] = struct{}{}
			want = append(want, inline)
		}
		w.append((&Completion{Ref: ref, Inline: []byte(inline)}).encode(completionMade))
	}
	theirs.In.Awake()
	if !w.open(conn, &ours.Out, (&Completion{}).encode(completionWake), false) {
		t.Fatal("it is closed")
	}
	var got []string
	n := New(Config{Completed: func(completions []Completion) {
		for _, c := range completions {
			got = append(got, string(c.Inline))
		}
	}})
	defer n.Close()
	link := &hostLink{End: theirs, conn: peer, handle: func(record []byte) error { return n.takeCompletions(p, record) }}
	if found := link.drain(); !found || !slices.Equal(got, want) {
		t.Errorf("%q arrived", got)
	}
	if len(p.subscribed) > 0 {
		t.Errorf("%d subscriptions are open", len(p.subscribed))
	}
	// Half a notification ends nothing that was subscribed.
	p.subscribed[transfer.Ref{Task: 4, Generation: 1}] = struct{}{}
	record := (&Completion{Ref: transfer.Ref{Task: 4, Generation: 1}}).encode(completionMade)
	if err := n.takeCompletions(p, append(record, record[:completionBytes-1]...)); err == nil || len(p.subscribed) != 1 {
		t.Errorf("half of one: %v, %d subscriptions are open", err, len(p.subscribed))
	}
}
