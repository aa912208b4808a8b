package netlab_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/test/netlab"
)

func TestMain(m *testing.M) { os.Exit(netlab.Main(m)) }

func TestCutLosesOneWay(t *testing.T) {
	l := netlab.New(t, 2)
	// UDP sends no replies of its own: only the packet that was sent can arrive.
	reach := func(from, to int) bool {
		out, err := l.Host(from).Command(context.Background(), "bash", "-c",
			"exec 3<>/dev/udp/"+l.Host(to).Address()+"/9; echo x >&3; read -t 0.3 -u 3 y; echo $?").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		// The port is closed: read fails at once if the packet and the reply to it both arrived.
		return !strings.HasSuffix(strings.TrimSpace(string(out)), "142")
	}
	// On a busy machine a packet may be late. A dropped packet never arrives.
	reaches := func(from, to int) bool {
		for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); {
			if reach(from, to) {
				return true
			}
		}
		return false
	}
	if !reaches(0, 1) || !reaches(1, 0) {
		t.Fatal("hosts do not reach each other before the cut")
	}
	l.Cut(0, 1)
	if reach(0, 1) {
		t.Error("packets of host 0 arrive in spite of the cut")
	}
	l.Mend(0, 1)
	if !reaches(0, 1) {
		t.Error("packets of host 0 do not arrive after the end of the cut")
	}
}
