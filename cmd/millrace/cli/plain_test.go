package cli

import (
	"errors"
	"strings"
	"testing"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

func TestNothingOrdersTheTerminal(t *testing.T) {
	for text, want := range map[string]string{
		"plain":                        "plain",
		"grün, 数, 🙂, क्\u200dष":        "grün, 数, 🙂, क्\u200dष",
		"\x1b]0;title\x07":             `\u001b]0;title\u0007`,
		"\x1b[2J":                      `\u001b[2J`,
		"a\u202eb\u2066c":              `a\u202eb\u2066c`,
		"line\nand\tcolumn\r":          `line\u000aand\u0009column\u000d`,
		"\u009b31m":                    `\u009b31m`,
		"\xff\xfe":                     `\xff\xfe`,
		"\u2028\U000e0041\u00ad\ufeff": `\u2028\U000e0041\u00ad\ufeff`,
	} {
		if got := plain(text); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	if got := plainLines("a\n\tb\x1b"); got != "a\n\tb\\u001b" {
		t.Errorf("lines: %q", got)
	}
	var b strings.Builder
	row(&b, "key\x1b]52;c;AAAA\x07", "two\tcells", 3)
	if got := b.String(); strings.ContainsRune(got, 0x1b) || strings.Count(got, "\t") != 2 || strings.Count(got, "\n") != 1 {
		t.Errorf("a row: %q", got)
	}
}

// An error message names commands, even if the scheduler's message names API methods.
func TestErrorsSpeakOfCommands(t *testing.T) {
	const dialing = "rpc error: code = Unavailable desc = connection error: desc = \"transport: Error while dialing: "
	for text, want := range map[string]string{
		"rpc error: code = NotFound desc = there is no task \"x\x1b\": check it; see ListTasks": "there is no task \"x\\u001b\": check it; see `millrace get tasks`",
		"worker w: millrace: ListWorkers: no such worker (UNKNOWN_WORKER)":                      "worker w: no such worker (UNKNOWN_WORKER)",
		dialing + "dial tcp 127.0.0.1:1: connect: connection refused\"":                         "cannot connect to 127.0.0.1:1: connection refused: check the address, and that it runs",
		dialing + "dial tcp: lookup nowhere: no such host\"":                                    "cannot connect: lookup nowhere: no such host",
	} {
		if got := errorText(errors.New(text)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// NextUse is a rank of which only the order matters. The command shows the position in that order.
func TestNextUseIsAPlaceInTheOrder(t *testing.T) {
	rank := func(n uint64) *millracev1.MemoryHolding {
		return &millracev1.MemoryHolding{Use: &millracev1.MemoryHolding_NextRank{NextRank: n}}
	}
	none := func(why millracev1.NextUse) *millracev1.MemoryHolding {
		return &millracev1.MemoryHolding{Use: &millracev1.MemoryHolding_NextUse{NextUse: why}}
	}
	m := &millracev1.DescribeMemoryResponse{
		Largest: []*millracev1.MemoryHolding{
			rank(9223090561878065172), rank(7), none(millracev1.NextUse_NEXT_USE_UNKNOWN), none(millracev1.NextUse_NEXT_USE_NEVER), rank(7), {ReservationId: 1},
		},
		Pinned: []*millracev1.MemoryHolding{rank(9)},
	}
	order, got := usesInOrder(m), ""
	for _, h := range m.GetLargest() {
		got += nextUse(h, order) + " "
	}
	if want := "3rd 1st unknown never 1st - "; got != want || nextUse(m.GetPinned()[0], order) != "2nd" {
		t.Errorf("%q, want %q; %s", got, want, nextUse(m.GetPinned()[0], order))
	}
}

func TestAddressesCanBePasted(t *testing.T) {
	if got := pastable("[::]:7786"); strings.Contains(got, "::") || !strings.HasSuffix(got, ":7786") {
		t.Errorf("everywhere: %s", got)
	}
	for address, want := range map[string]string{"127.0.0.1:1": "127.0.0.1:1", "": "", "host:2": "host:2", "[::1]:3": "[::1]:3"} {
		if got := pastable(address); got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
	if got := reachedAs("[::]:7787", "10.0.0.1:7786"); got != "10.0.0.1:7787" {
		t.Error(got)
	}
	if got := reachedAs("", "10.0.0.1:7786"); got != "" {
		t.Error(got)
	}
}
