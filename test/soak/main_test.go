// Package soak is Test support: three schedulers, workers and clients as real processes, to which
// faults happen while they work. All that clients were told must be there later.
package soak

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/millrace/millrace/test/netlab"
)

var (
	minutesFlag  = flag.Float64("soak.minutes", 0, "how long TestSoak makes faults; 0: each kind once")
	seedFlag     = flag.Uint64("soak.seed", 1, "which faults TestSoak makes")
	electionFlag = flag.Duration("soak.election-timeout", 0, "--election-timeout of the schedulers; 0: 3 s, for machines where processes stand still")
	logFlag      = flag.String("soak.logs", "", "a directory that keeps what the processes write; empty: it is shown if a test fails")
)

// eventTimeout is the longest time that a test waits for an event on a very busy machine.
const eventTimeout = 5 * time.Minute

// apart tells whether schedulers and workers are hosts of their own, whose networks can be cut.
var apart bool

func TestMain(m *testing.M) {
	flag.Parse()
	if err := netlab.Missing(); err != nil {
		fmt.Fprintf(os.Stderr, "soak: no partitions: %v\n", err)
		os.Exit(m.Run())
	}
	apart = true
	os.Exit(netlab.Main(m))
}
