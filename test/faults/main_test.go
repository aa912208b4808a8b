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
	bytesFlag = flag.Int64("faults.bytes", 0, "bytes that are transferred when a process is killed or stopped in the middle; 0: 1 GiB, or 256 MiB with -short")
	logFlag   = flag.Bool("faults.log", false, "show the output of the processes even if the test passes")
	stopFlag  = flag.Duration("faults.stop", 8*time.Second, "how long processes are stopped: more than the lease of a worker")
)

func TestMain(m *testing.M) {
	flag.Parse()
	// The tests mostly wait for time limits. With more clusters at the same time they would wait
	// for processors.
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = flag.Set("test.parallel", "4") // cannot fail, because the flag exists
	}
	os.Exit(netlab.Main(m))
}

// transferBytes returns the number of bytes that are transferred.
func transferBytes() int64 {
	switch {
	case *bytesFlag > 0:
		return *bytesFlag
	case testing.Short():
		return 256 << 20
	}
	return 1 << 30
}
