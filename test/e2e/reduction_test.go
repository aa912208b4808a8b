package e2e

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
)

// reductionGiB is the size of the data that goes through two slabs of a sixteenth of it each.
var reductionGiB = flag.Int("reduction.gib", 1, "GiB of chunks of the reduction that is larger than memory")

// ownBytes bounds a worker's memory besides its slab: code, stacks, buffers, bookkeeping.
const ownBytes = 128 << 20

// TestReductionOverMoreThanTheSlabs makes chunks of eight times the size of both slabs together,
// and then adds them up in pairs. The sum is right, most of the chunks were on disk, and no worker
// ever had more than the slabs and ownBytes.
func TestReductionOverMoreThanTheSlabs(t *testing.T) {
	const chunks = 256
	total := *reductionGiB << 30
	slab, elements := total/16, total/chunks/8
	directory := t.TempDir()
	c := startCluster(t, "--workers", "2", "--slots", "1", "--memory-limit", strconv.Itoa(slab), "--spill-limit", strconv.Itoa(2*total), "--local-directory", directory)
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(*reductionGiB)*3*eventTimeout)
	defer cancel()
	client, err := millrace.Dial(ctx, millrace.WithSchedulerFile(c.file))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}()
	workers, err := client.Workers(ctx)
	if err != nil || len(workers) != 2 {
		t.Fatalf("workers: %v, %v", workers, err)
	}
	stop := make(chan struct{})
	peaks := make(chan map[int64]memoryUse, 1)
	go func() {
		most := map[int64]memoryUse{}
		for every := time.NewTicker(20 * time.Millisecond); ; {
			for _, w := range workers {
				if now, err := memoryOf(w.GetPid()); err == nil {
					was := most[w.GetPid()]
					most[w.GetPid()] = memoryUse{max(was.own, now.own), max(was.resident, now.resident)}
				}
			}
			select {
			case <-stop:
				every.Stop()
				peaks <- most
				return
			case <-every.C:
			}
		}
	}()
	begin := time.Now()
	submit := func(op string, args millrace.Arguments) *millrace.Future {
		f, err := client.Submit(ctx, millrace.Native(op), args)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	level := make([]*millrace.Future, chunks)
	for i := range level {
		level[i] = submit("array.full", millrace.Args([]int{elements}, float64(i)))
	}
	wait := func(level []*millrace.Future) {
		for _, f := range level {
			if err := f.Wait(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	wait(level)
	for len(level) > 1 {
		var up []*millrace.Future
		for i := 0; i < len(level); i += 2 {
			up = append(up, submit("array.map", millrace.Args("x0+x1", level[i], level[i+1])))
		}
		wait(up)
		for _, f := range level {
			f.Release()
		}
		level = up
	}
	got, err := millrace.Get[float64](ctx, submit("array.reduce", millrace.Args(level[0], "sum")))
	if want := float64(chunks*(chunks-1)/2) * float64(elements); err != nil || got != want {
		t.Errorf("sum %v, want %v (%v)", got, want, err)
	}
	took := time.Since(begin)
	close(stop)
	most := <-peaks
	var written uint64
	workers, err = client.Workers(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range workers {
		m, err := client.DescribeMemory(ctx, w, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		written += m.GetTiers()[1].GetWrittenBytes()
		peak := most[w.GetPid()]
		t.Logf("%s: slab %d MiB, at most %d MiB beside it; resident with the slab, and with what it borrows, %d MiB", w.GetName(), slab>>20, peak.own>>20, peak.resident>>20)
		if peak.own == 0 || peak.own > ownBytes {
			t.Errorf("%s took %d MiB beside its slab, want at most %d", w.GetName(), peak.own>>20, ownBytes>>20)
		}
		// Pages of the other worker's slab that it reads in place count for it, too.
		if peak.resident > uint64(2*slab)+ownBytes {
			t.Errorf("%s had %d MiB resident, with slabs of %d", w.GetName(), peak.resident>>20, slab>>20)
		}
	}
	t.Logf("%d GiB in %.1f s, %d MiB written to disk", *reductionGiB, took.Seconds(), written>>20)
	if written < uint64(total)/2 {
		t.Errorf("only %d of %d MiB of chunks went to disk", written>>20, total>>20)
	}
}

// memoryUse is the memory of a process: own is without shared memory, which its slab is; resident
// includes it.
type memoryUse struct{ own, resident uint64 }

// memoryOf reads a process's memory use; resident is its highest value so far.
func memoryOf(pid int64) (m memoryUse, err error) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return m, err
	}
	defer func() { _ = file.Close() }() // read only
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		switch name {
		case "RssAnon", "RssFile", "VmHWM":
			kib, err := strconv.ParseUint(strings.Fields(value)[0], 10, 64)
			if err != nil {
				return m, err
			}
			if name == "VmHWM" {
				m.resident = kib << 10
			} else {
				m.own += kib << 10
			}
		}
	}
	return m, lines.Err()
}
