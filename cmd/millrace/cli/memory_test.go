package cli

import (
	"strings"
	"testing"
	"text/tabwriter"

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
		{TaskId: 7, Generation: 2, Objects: 1, Bytes: 64 << 20, PeerWorkerId: 3, BegunNanos: 6_400, PlacedNanos: 31_700, ArrivedNanos: 251_000, UsableNanos: 1_267_000},
		{TaskId: 8, Generation: 1, Objects: 1, Bytes: 64 << 10, PeerWorkerId: 3, ReadByTaskId: 9, UsableNanos: 20_400},
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
