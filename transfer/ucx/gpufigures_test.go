//go:build cgo && linux

package ucx_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/grpcpath"
	"github.com/millrace/millrace/transfer/transfertest"
	"github.com/millrace/millrace/transfer/ucx"
)

// otherEnv says where children run that should be on another host: their address, the network
// devices of this process and of them, and a command that runs others there. Not set: on this host.
const otherEnv = "MILLRACE_TEST_OTHER_HOST"

// farHost is a host on which children run.
type farHost struct {
	address, ours, theirs string
	command               []string
}

func thisHost() farHost { return farHost{address: "127.0.0.1", ours: "lo", theirs: "lo"} }

func otherHost(t *testing.T) farHost {
	t.Helper()
	words := strings.Fields(os.Getenv(otherEnv))
	switch {
	case len(words) == 0:
		return thisHost()
	case len(words) < 3:
		t.Fatalf("%s=%q: want an address, two network devices, and a command", otherEnv, words)
	}
	return farHost{words[0], words[1], words[2], words[3:]}
}

// plan has the sizes of TestGPUStagedFigures.
type plan struct {
	// slab is the size of a slab, and moved the number of bytes that a leg alone moves.
	slab, moved uint64
	single      []int
	small       int
	times       int
}

const smallBytes = 64 << 10

// TestGPUStagedFigures measures the legs of a staged transfer alone, and the transfer beside them:
// slab to ring, wire, ring to slab. The wire alone is a transfer between host memories over the
// same transports. On the fake driver the sizes are small, and only the bytes count.
func TestGPUStagedFigures(t *testing.T) {
	driver, err := driver()
	if err != nil {
		t.Fatal(err)
	}
	p := plan{slab: 256 << 20, moved: 32 << 20, single: []int{1 << 20, 9 << 20}, small: 70, times: 2}
	if onRealGPU() {
		p = plan{slab: 4 << 30, moved: 4 << 30, single: []int{1 << 20, 64 << 20, 256 << 20}, small: 1000, times: 12}
	}
	load, store := copyLegs(t, driver, p)
	for _, w := range []struct {
		name, tls string
		on        farHost
	}{
		{"tcp", "tcp", otherHost(t)},
		{"cma", "posix,cma", thisHost()},
	} {
		t.Run(w.name, func(t *testing.T) {
			wire := fetches(t, driver, p, true, w.tls, w.on)
			staged := fetches(t, driver, p, false, w.tls, w.on)
			for i, what := range p.names() {
				slower := min(load, store, wire[i])
				transfertest.Note(t, fmt.Sprintf("%s: %s between hosts' memories", w.name, what), wire[i], "GB/s")
				transfertest.Note(t, fmt.Sprintf("%s: %s staged between GPUs", w.name, what), staged[i], "GB/s")
				transfertest.Note(t, fmt.Sprintf("%s: %s staged, beside the slowest leg", w.name, what), staged[i]/slower, "x")
			}
		})
	}
}

// names names what is fetched.
func (p plan) names() (names []string) {
	for _, n := range p.single {
		names = append(names, fmt.Sprintf("%d KiB", n>>10))
	}
	return append(names, fmt.Sprintf("%d x %d KiB", p.small, smallBytes>>10))
}

// copyLegs measures the copies between a slab and a ring, in GB/s.
func copyLegs(t *testing.T, driver *cuda.Driver, p plan) (load, store float64) {
	t.Helper()
	slab, err := openGPU(t, driver, 0).NewSlab(cuda.SlabConfig{Size: cuda.Size{Bytes: p.slab}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { done(t, "free the slab", slab.Close()) })
	legs, err := transfertest.MeasureLegs(t.Context(), slab, p.moved)
	if err != nil {
		t.Fatal(err)
	}
	transfertest.Note(t, "slab to ring", legs.Load/1e9, "GB/s")
	transfertest.Note(t, "ring to slab", legs.Store/1e9, "GB/s")
	transfertest.Note(t, "slab to ring, beside ring to slab", legs.LoadBeside/1e9, "GB/s")
	transfertest.Note(t, "ring to slab, beside slab to ring", legs.StoreBeside/1e9, "GB/s")
	return legs.Load / 1e9, legs.Store / 1e9
}

// spread places object i of a fetch at i times step into a region.
type spread struct {
	region transfer.Region
	step   uint64
}

func (spread) Capabilities() transfer.SinkCapabilities { return transfer.SinkCapabilities{} }

func (s spread) Place(_ context.Context, index int, head transfer.Head) ([]transfer.Region, error) {
	r := s.region
	r.Frame.Offset += uint64(index) * s.step
	r.Frame.Bytes = head.Bytes()
	return []transfer.Region{r}, nil
}

func (spread) Done(int, error) {}

// fetches measures fetches between host memories, or between GPUs, and returns the rates in GB/s,
// in the order of plan.names. It checks the bytes of each.
func fetches(t *testing.T, driver *cuda.Driver, p plan, onHost bool, tls string, on farHost) (rates []float64) {
	t.Helper()
	id := memory.Identity{WorkerUUID: [16]byte{1}, Incarnation: [16]byte{2}, Nonce: lastNonce.Add(1)}
	sizes := append(slices.Clone(p.single), slices.Repeat([]int{smallBytes}, p.small)...)
	total := uint64(64 << 20)
	for _, n := range sizes {
		total += uint64(n)
	}
	c := startOnGPU(t, gpuOrder{
		Ordinal: len(driver.Devices()) - 1, SlabBytes: total &^ (memory.StageBytes - 1), Identity: id, Sizes: sizes, TLS: tls, OnHost: onHost, On: on.address, NetDevices: on.theirs, Command: on.command,
	}, new(Source))
	largest := uint64(max(slices.Max(p.single), p.small*smallBytes))
	room := (largest + 64<<20) &^ (memory.StageBytes - 1)
	var space memory.Space
	if onHost {
		s, err := host.NewSlab(room, id)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { done(t, "free the memory", s.Close()) })
		space = s
	} else {
		s, err := openGPU(t, driver, 0).NewSlab(cuda.SlabConfig{Size: cuda.Size{Bytes: room}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { done(t, "free the slab", s.Close()) })
		space = s
	}
	path := pathInto(t, space, tls, on.ours, transfertest.Patience)
	connection, err := path.Connect(t.Context(), c.peer)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("between hosts' memories %v: %s", onHost, connection)
	place, err := transfertest.NewRoom(space).Take(largest)
	if err != nil {
		t.Fatal(err)
	}
	for i := range p.single {
		rates = append(rates, fetchRate(t, path, c.peer, place, p.times, i+1, 1, p.single[i]))
	}
	return append(rates, fetchRate(t, path, c.peer, place, p.times, len(p.single)+1, p.small, smallBytes))
}

// pathInto opens UCX for a slab, and returns a path that fetches into it. It notes the time of
// that, with the registration of the slab.
func pathInto(t *testing.T, space memory.Space, tls, devices string, stall time.Duration) *ucx.Path {
	t.Helper()
	began := time.Now()
	c, err := ucx.Open(ucx.Config{Library: library(t), TLS: tls, NetDevices: devices, Space: space})
	if err != nil {
		t.Fatal(err)
	}
	what := fmt.Sprintf("ucx (%s) is open, with %d MiB of %T", tls, space.Size()>>20, space)
	transfertest.Note(t, what, time.Since(began).Seconds()*1e3, "ms")
	wire := grpcpath.New(grpcpath.Config{StallTimeout: stall})
	path := ucx.NewPath(c, ucx.PathConfig{
		Connect: func(ctx context.Context, peer transfer.Peer, r *workerv1.ConnectRequest) (*workerv1.ConnectResponse, error) {
			return wire.Connect(ctx, peer, r)
		},
		StallTimeout: stall,
	})
	t.Cleanup(func() { done(t, "close", errors.Join(path.Close(), c.Close(), wire.Close())) })
	return path
}

// fetchRate returns the median rate of fetches of count objects of some size, in GB/s.
func fetchRate(t *testing.T, path *ucx.Path, peer transfer.Peer, place transfer.Region, times, first, count, size int) float64 {
	t.Helper()
	var refs []transfer.Ref
	for i := range count {
		refs = append(refs, transfer.Ref{Task: idOf(first + i), Generation: 1})
	}
	var took []time.Duration
	for i := range times + 1 {
		began := time.Now()
		if err := path.Fetch(t.Context(), peer, refs, spread{place, uint64(size)}); err != nil {
			t.Fatal(err)
		}
		if i > 0 { // the first one touches memory for the first time
			took = append(took, time.Since(began))
		}
	}
	for i := range count {
		checkPlaced(t, place, uint64(i*size), stamped(first+i, size))
	}
	return float64(count*size) / median(took).Seconds() / 1e9
}

// checkPlaced checks bytes in a region.
func checkPlaced(t *testing.T, place transfer.Region, at uint64, want []byte) {
	t.Helper()
	at += place.Frame.Offset
	got := place.Space.Bytes(at, uint64(len(want)))
	if s, ok := place.Space.(memory.Staged); ok {
		got = make([]byte, len(want))
		if err := s.ReadInto(at, got); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes at %d are wrong", len(want), at)
	}
}
