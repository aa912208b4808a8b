//go:build cgo && linux

package ipc_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/ipc"
)

// ratesEnv names a file to which measured rates are appended.
const ratesEnv = "MILLRACE_RATES"

// tell records a measurement on a real GPU.
func tell(t *testing.T, name string, value float64, unit string) {
	t.Helper()
	t.Logf("%-48s %10.2f %s", name, value, unit)
	file, err := os.OpenFile(os.Getenv(ratesEnv), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil || fake != nil {
		return // recording was not requested
	}
	defer closing(t, file)
	if _, err := fmt.Fprintf(file, "%-48s %10.2f %s\n", name, value, unit); err != nil {
		t.Error(err)
	}
}

func percentile(times []time.Duration, p float64) time.Duration {
	slices.Sort(times)
	return times[int(p*float64(len(times)-1))]
}

// Measures fetches through the whole path, next to the bare copy over the same mapping in the same
// run.
func TestGPUFetchFigures(t *testing.T) {
	sets := []set{
		{First: 0, Count: 1000, Bytes: 4 << 10}, {First: 1000, Count: 1000, Bytes: 64 << 10}, {First: 2000, Count: 1, Bytes: 1 << 20},
		{First: 2001, Count: 1, Bytes: 16 << 20}, {First: 2002, Count: 1, Bytes: 64 << 20}, {First: 2003, Count: 1, Bytes: 256 << 20}, {First: 2004, Count: 1, Bytes: 1 << 30},
	}
	slabBytes, repeats := uint64(4<<30), 200
	if fake != nil {
		sets, slabBytes, repeats = sets[:4], 256<<20, 3
	}
	address := freeAddress()
	c := startChild(t, order{Device: otherDevice(), Size: cuda.Size{Bytes: slabBytes}, Identity: newIdentity(), Address: address, Sets: sets})
	peer := transfer.Peer{Worker: 7, Name: "source", Address: address}
	r := newReader(t, slabBytes, nil)
	began := time.Now()
	link, err := r.path.Connect(t.Context(), peer)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("connected in %v: %s", time.Since(began), link)
	raw := openDevice(t, 0)
	mapped, err := raw.OpenPeer(c.export)
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, mapped)
	event, err := raw.NewPolledEvent()
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, event)
	mix := rand.New(rand.NewPCG(1, 2))
	asking := newReader(t, slabBytes, func(c *ipc.Config) { c.NoIndex = true })
	lead := func(r *reader, refs []transfer.Ref, bytes uint64, n int, mixed bool) (times []time.Duration, cpu time.Duration, sink *places) {
		t.Helper()
		r.room.Reset()
		sink, err := newPlaces(r.room, len(refs), bytes)
		if err != nil {
			t.Fatal(err)
		}
		if mixed {
			mix.Shuffle(len(sink.regions), func(i, j int) { sink.regions[i], sink.regions[j] = sink.regions[j], sink.regions[i] })
		}
		for range 5 {
			_ = r.path.Fetch(t.Context(), peer, refs, together{sink}) // an error would recur
		}
		cpu = processorTime()
		for range n {
			began := time.Now()
			if err := r.path.Fetch(t.Context(), peer, refs, together{sink}); err != nil || sink.err != nil {
				t.Fatal(err, sink.err)
			}
			times = append(times, time.Since(began))
		}
		return times, processorTime() - cpu, sink
	}
	// mixed: both the requested order and the order of the places are random.
	fetch := func(first, count int, bytes uint64, mixed bool) {
		t.Helper()
		name := fmt.Sprintf("fetch %d x %d KiB", count, bytes>>10)
		refs := make([]transfer.Ref, count)
		for i := range refs {
			refs[i] = ref(first + i)
		}
		if mixed {
			name += ", mixed"
			mix.Shuffle(count, func(i, j int) { refs[i], refs[j] = refs[j], refs[i] })
		}
		n := repeats
		if total := uint64(count) * bytes; total >= 64<<20 {
			n = max(repeats/4, 1)
		}
		asked, _, _ := lead(asking, refs, bytes, n, mixed)
		times, cpu, sink := lead(r, refs, bytes, n, mixed)
		raws := make([]time.Duration, n)
		var elapsed time.Duration
		for _, took := range times {
			elapsed += took
		}
		s := raw.Stream(cuda.In)
		to := sink.regions[0].Frame.Offset
		for i := range raws {
			began := time.Now()
			copies := []cuda.Copy{cuda.OnDevice(r.slab.Pointer(to, bytes), mapped.Pointer(4096, bytes), bytes)}
			if err := s.Copy(copies, event); err != nil {
				t.Fatal(err)
			}
			for done := false; !done; {
				if done, err = event.Query(); err != nil {
					t.Fatal(err)
				}
			}
			raws[i] = time.Since(began)
		}
		p50, raw50 := percentile(times, .5), percentile(raws, .5)
		tell(t, name+": p50", float64(p50)/1e3, "us")
		tell(t, name+": p50 by asking", float64(percentile(asked, .5))/1e3, "us")
		tell(t, name+": p99", float64(percentile(times, .99))/1e3, "us")
		tell(t, name+": rate", float64(uint64(count)*bytes)/p50.Seconds()/1e9, "GB/s")
		tell(t, name+": processor", 100*cpu.Seconds()/elapsed.Seconds(), "%")
		tell(t, fmt.Sprintf("raw copy of %d KiB: p50", bytes>>10), float64(raw50)/1e3, "us")
		tell(t, fmt.Sprintf("raw copy of %d KiB: rate", bytes>>10), float64(bytes)/raw50.Seconds()/1e9, "GB/s")
	}
	for _, s := range sets {
		if s.Count == 1 {
			fetch(s.First, 1, s.Bytes, false)
			continue
		}
		for _, count := range []int{1, 16, 100, s.Count} {
			fetch(s.First, count, s.Bytes, false)
		}
		fetch(s.First, s.Count, s.Bytes, true)
	}
	t.Logf("rates: %s", r.path.Lane(address).Transport)
	cpu, began := processorTime(), time.Now()
	select {
	case <-time.After(500 * time.Millisecond):
	case <-t.Context().Done():
	}
	tell(t, "an idle path: processor", 100*(processorTime()-cpu).Seconds()/time.Since(began).Seconds(), "%")
}

// All children fetch from all others at once.
func TestGPUAllToAllFigures(t *testing.T) {
	n, bytes, slabBytes, rounds := len(driver.Devices()), uint64(256<<20), uint64(4<<30), 60
	if fake != nil {
		bytes, slabBytes, rounds = 4<<20, 64<<20, 3
	}
	if n < 2 {
		t.Log("one device: nothing to measure")
		return
	}
	addresses, children := make([]string, n), make([]*child, n)
	for i := range n {
		addresses[i] = freeAddress()
		children[i] = startChild(t, order{
			Device: i, Size: cuda.Size{Bytes: slabBytes}, Identity: newIdentity(), Address: addresses[i],
			Sets: []set{{First: 0, Count: 1, Bytes: bytes}},
		})
	}
	run := func(name string, rounds int, from func(i int) []string) {
		t.Helper()
		for i, c := range children {
			c.tell(t, order{Fetch: from(i), Ref: 0, Rounds: rounds, Bytes: bytes})
		}
		var sum, cpu, slowest float64
		for i, c := range children {
			a := c.hear(t)
			if k := len(from(i)); k > 0 {
				sum += float64(k) * float64(rounds) * float64(bytes) / a.Seconds / 1e9
				cpu = max(cpu, 100*a.CPUSeconds/a.Seconds)
				slowest = max(slowest, a.Seconds/float64(rounds))
			}
		}
		if rounds > 3 {
			tell(t, fmt.Sprintf("%s, %d GPUs: all together", name, n), sum, "GB/s")
			tell(t, fmt.Sprintf("%s, %d GPUs: a round", name, n), slowest*1e3, "ms")
			tell(t, fmt.Sprintf("%s, %d GPUs: processor, at most", name, n), cpu, "%")
		}
	}
	others := func(i int) []string { return slices.Delete(slices.Clone(addresses), i, i+1) }
	run("all-to-all", 3, others) // maps the memory
	run("all-to-all", rounds, others)
	run("ring", rounds, func(i int) []string { return addresses[(i+1)%n : (i+1)%n+1] })
	run("fan-out", rounds, func(i int) []string {
		if i == 0 {
			return nil
		}
		return addresses[:1]
	})
}

// Copies one object to all devices, and to three readers at least, in a broadcast chain: each
// reader copies from the one before it while the object arrives there. With two devices, the first
// and the last of three hops go over NVLink in opposite directions, and the one between stays on
// one device.
func TestGPUChainFigures(t *testing.T) {
	devices, bytes, slabBytes, rounds := len(driver.Devices()), uint64(256<<20), uint64(2<<30), 60
	if fake != nil {
		bytes, slabBytes, rounds = 48<<20, 128<<20, 3
	}
	n := max(devices, 4)
	on := func(i int) int {
		if devices < n {
			return (i + 1) / 2 % devices
		}
		return i
	}
	addresses, children := make([]string, n), make([]*child, n)
	for i := range n {
		o := order{Device: on(i), Size: cuda.Size{Bytes: slabBytes}, Identity: newIdentity(), Address: freeAddress()}
		if addresses[i] = o.Address; i == 0 {
			o.Sets = []set{{Count: 1, Bytes: bytes}}
		}
		children[i] = startChild(t, o)
	}
	all := func(o func(i int) order) (answers []answer) {
		t.Helper()
		for i, c := range children[1:] {
			c.tell(t, o(i+1))
		}
		for _, c := range children[1:] {
			answers = append(answers, c.hear(t))
		}
		return answers
	}
	measure := func(name string, o func(i int) order) {
		t.Helper()
		var took []time.Duration
		last := make([][]time.Duration, n)
		for round := range rounds + 3 {
			all(func(int) order { return order{Unpublish: true} })
			at := time.Now().Add(2 * time.Millisecond).UnixNano()
			latest := time.Duration(0)
			for i, a := range all(func(i int) order {
				o := o(i)
				o.Rounds, o.Bytes, o.At = 1, bytes, at
				return o
			}) {
				d := time.Duration(a.Ended - at)
				last[i+1] = append(last[i+1], d)
				latest = max(latest, d)
			}
			if round >= 3 { // the first rounds map the memory
				took = append(took, latest)
			}
		}
		if rounds > 3 {
			name = fmt.Sprintf("%s of %d MiB, %d readers on %d GPUs", name, bytes>>20, n-1, devices)
			tell(t, name+": p50", float64(percentile(took, .5))/1e3, "us")
			tell(t, name+": p99", float64(percentile(took, .99))/1e3, "us")
			for i := 1; i < n; i++ {
				tell(t, fmt.Sprintf("%s: reader %d, p50", name, i), float64(percentile(last[i], .5))/1e3, "us")
			}
		}
	}
	measure("from one", func(int) order { return order{Fetch: addresses[:1]} })
	measure("alone", func(i int) order {
		if i == 1 {
			return order{Fetch: addresses[:1]}
		}
		return order{}
	})
	measure("alone, relayed", func(i int) order {
		if i == 1 {
			return order{Fetch: addresses[:1], Forward: true}
		}
		return order{}
	})
	measure("chain", func(i int) order { return order{Fetch: addresses[i-1 : i], Forward: true, Pipelined: i > 1} })
}
