// Package faults is Test support: what a cluster does when a process, a host, the network, a disk, memory or UCX fails it.
// The hosts are network namespaces; the processes, and the faults, are real. README.md says which test is for which fault.
//
// Payloads are made by bench.stamp: whoever reads one checks every word of it, so that bytes of another object, another
// generation or another life are noticed wherever they come from.
package faults

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/millrace/millrace/test/netlab"
)

var (
	volume  = flag.Int64("faults.bytes", 1<<30, "what is on its way when a process is killed or stopped in the middle")
	showLog = flag.Bool("faults.log", false, "show what the processes wrote even if all is well")
	pause   = flag.Duration("faults.stop", 8*time.Second, "how long processes are stopped: more than the lease of a worker")
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Most of the time is spent waiting for deadlines. More clusters at once than this would only wait for cores.
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = flag.Set("test.parallel", "4") // it is there
	}
	os.Exit(netlab.Main(m))
}

// moved is what is on its way.
func moved() int64 {
	return *volume
}
