package cli

import (
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// The command shows where the time between the request for an object and its use went.
func TestFetchesAreShown(t *testing.T) {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 8, 2, ' ', 0)
	memoryFetches(w, workerMemory{memory: &millracev1.DescribeMemoryResponse{}})
	if err := w.Flush(); err != nil || out.Len() > 0 {
		t.Errorf("%v; of no fetches it says\n%s", err, out.String())
	}
	memoryFetches(w, workerMemory{memory: &millracev1.DescribeMemoryResponse{Fetches: []*millracev1.MemoryFetch{
		{
			TaskId: 7, Generation: 2, ObjectCount: 1, ObjectBytes: 64 << 20, PeerWorkerId: 3,
			BegunAfter: durationpb.New(6_400), PlacedAfter: durationpb.New(31_700), ArrivedAfter: durationpb.New(251_000), UsableAfter: durationpb.New(1_267_000),
		},
		{TaskId: 8, Generation: 1, ObjectCount: 1, ObjectBytes: 64 << 10, PeerWorkerId: 3, ReadByTaskId: 9, UsableAfter: durationpb.New(20_400)},
	}}})
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	const want = `
FETCHED  OBJECTS  BYTES   FROM  BEGUN AFTER          PLACED  ARRIVED  USABLE
t7/a2    1        64 MiB  w3    6µs                  32µs    251µs    1.267ms
t8/a1    1        64 KiB  w3    read in place by t9  -       -        20µs
`
	if out.String() != want {
		t.Errorf("got\n%s", out.String())
	}
}

func TestTiersAreShownWithTheirLargestFreePiece(t *testing.T) {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 8, 2, ' ', 0)
	memoryTable(w, workerMemory{&millracev1.Worker{Name: "host-0"}, &millracev1.DescribeMemoryResponse{Tiers: []*millracev1.MemoryTier{
		{Name: "slab", SizeBytes: 8 << 20, UsedBytes: 5 << 20, LargestFreeBytes: 2 << 20, ObjectBytes: 4 << 20},
	}}})
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, parts := range [][]string{
		{"TIER", "SIZE", "USED", "LARGEST FREE", "OBJECTS"},
		{"slab", "8.0 MiB", "5.0 MiB", "2.0 MiB", "4.0 MiB"},
	} {
		if !hasLine(out.String(), parts) {
			t.Errorf("no line has %q:\n%s", parts, out.String())
		}
	}
}

// The owner of a reservation is a task, a worker, a client or an executor; explain recognises the
// task that waits.
func TestOwnersOfReservationsAreNamed(t *testing.T) {
	owners := []*millracev1.MemoryOwner{
		{Owner: &millracev1.MemoryOwner_WorkerId{WorkerId: 7}}, {Owner: &millracev1.MemoryOwner_WrittenTaskId{WrittenTaskId: 7}},
		{Owner: &millracev1.MemoryOwner_ExecutorSlot{ExecutorSlot: 7}}, {Owner: &millracev1.MemoryOwner_TaskId{TaskId: 7}}, {},
	}
	m := &millracev1.DescribeMemoryResponse{
		Tiers:   []*millracev1.MemoryTier{{Name: "slab", SizeBytes: 4 << 20, UsedBytes: 3 << 20}},
		Largest: []*millracev1.MemoryHolding{{ReservationId: 1, Owner: owners[2], TierBytes: []uint64{1 << 20}}, {TaskId: 3, TierBytes: []uint64{1 << 19}}},
	}
	var names []string
	for i, o := range owners {
		names = append(names, ownerName(o))
		m.Reservations = append(m.Reservations, &millracev1.MemoryReservation{
			ReservationId: uint64(i + 1), Owner: o, RequestedBytes: 2 << 20, Age: durationpb.New(1500 * time.Millisecond),
		})
	}
	if got, want := strings.Join(names, ", "), "w7, a client that writes t7, executor 7, t7, unknown"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	const want = "; it has waited 1.5s for memory: 2.0 MiB for its result, behind 3 others; slab: 3.0 MiB of 4.0 MiB in use; most is held by executor 7 (1.0 MiB), the result of t3 (512 KiB)"
	if got := memoryWait(7, m); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if got := memoryWait(8, m); got != "" {
		t.Errorf("of a task that waits for nothing: %s", got)
	}
}
