// Package faults is Test support: tests of the behaviour of a cluster when a process, a host, the
// network, a disk, memory or UCX fails. The hosts are network namespaces; the processes and the
// faults are real. README.md maps each fault to its test.
//
// bench.stamp makes the payloads. A reader checks every word of a payload, so bytes of another
// object, another generation or another incarnation are detected, wherever they come from.
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
	// The tests mostly wait for deadlines. With more clusters at once they would only wait for
	// cores.
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = flag.Set("test.parallel", "4") // the flag exists
	}
	os.Exit(netlab.Main(m))
}

// moved returns the number of bytes that are transferred.
func moved() int64 {
	return *volume
}
