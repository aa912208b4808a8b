//go:build rdma

package rdma

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestBenchBesideUCX: bench transfer measures the workers over rc, beside reads by UCX alone from
// this host.
func TestBenchBesideUCX(t *testing.T) {
	c := start(t)
	c.awaitRoute("a-0", "b-0", true)
	cmd := exec.CommandContext(c.ctx(), c.binary, "bench", "transfer", "--json", "--hosts", "b-0,a-0", "--memory", device, "--sizes", "64KiB,1MiB", "--objects", "1,4",
		"--samples", "3", "--address", c.address, "--token", token, "--ucx-library", os.Getenv("MILLRACE_UCX_LIBRARY"), "--ucx-net-devices", "rxe0:1")
	// Raw reads are not repeated, unlike fetches, and the emulated processors are busy: so this
	// process has the limits of a real fabric, instead of those of the other tests.
	cmd.Env = append(os.Environ(), "UCX_RC_TIMEOUT=1s", "UCX_RC_RETRY_COUNT=7")
	cmd.Stderr = &c.log
	text, err := cmd.Output()
	t.Logf("%v: %s", err, text)
	var out struct {
		Raw  string
		Rows []struct {
			Lane     string
			GBPerS   float64                    `json:"gb_per_s"`
			RawRate  float64                    `json:"raw_gb_per_s"`
			RawTimes struct{ Min, Max float64 } `json:"raw_us"`
		}
	}
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	lane, raw := "ucx (rc_verbs)", "reads by UCX alone (rc_verbs, "
	if onGPUs() {
		lane, raw = "ucx (rc_verbs, staged at both ends)", raw+"staged at both ends, "
	}
	if len(out.Rows) != 4 || !strings.HasPrefix(out.Raw, raw) {
		t.Errorf("%d rows, raw: %s", len(out.Rows), out.Raw)
	}
	for _, row := range out.Rows {
		if row.Lane != lane || row.GBPerS <= 0 || row.RawRate <= 0 || row.RawTimes.Max < row.RawTimes.Min {
			t.Errorf("%+v", row)
		}
	}
}

// TestDoctorReadsByTheCard: doctor reads memory of this host by its RDMA device and back.
func TestDoctorReadsByTheCard(t *testing.T) {
	// The exit code is about the whole machine.
	text, _ := exec.CommandContext(t.Context(), os.Getenv("MILLRACE_BIN"), "doctor", "--json", "--ucx-library", os.Getenv("MILLRACE_UCX_LIBRARY"), "--ucx-net-devices", "rxe0:1").Output()
	t.Logf("%s", text)
	var out struct {
		Findings []struct{ Check, State, Found string }
	}
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for _, f := range out.Findings {
		seen[f.Check] = f.State + ": " + f.Found
	}
	for check, want := range map[string]string{
		"rdma-read host": "ok: rc_verbs, ", "rdma rxe0": "port 1: ACTIVE, Ethernet", "iommu": "ok: the kernel uses none",
	} {
		if !strings.Contains(seen[check], want) {
			t.Errorf("%s: %s", check, seen[check])
		}
	}
}
