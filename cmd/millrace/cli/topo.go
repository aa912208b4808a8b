package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

func (a *app) topo() *cobra.Command {
	cmd := &cobra.Command{
		Use: "topo", Short: "Show GPUs, their links, and by which path workers fetch from each other, how fast", Args: noArgs,
		Long: `Shows the GPUs of workers, their links, NUMA nodes and network cards, and for each pair of workers the path that
is taken, its measured rate and the latency of small objects, and for each better path why it is not taken. Pairs that have
fetched nothing yet are probed: each worker fetches an object of 4 MiB and a small one from each other worker.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), a.settings.Duration("timeout"))
			defer cancel()
			c, err := a.dial(ctx)
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			pairs, workers, err := a.pairs(ctx, c)
			if err != nil {
				return err
			}
			if a.settings.Bool("json") {
				return json.NewEncoder(a.out).Encode(map[string]any{"pairs": pairs, "gpus": topoGPUs(workers)})
			}
			return a.topoTable(pairs, workers)
		},
	}
	addCall(cmd)
	cmd.Flags().Bool("probe", true, "let pairs fetch something that have not yet")
	cmd.Flags().Bool("json", false, "print one JSON object instead of a table")
	return cmd
}

const (
	probeElements = 4 << 20 / 8
	// smallElements make an object that is just too large to travel inline, and small enough to
	// measure latency.
	smallElements = 96 << 10 / 8
	// maxProbes bounds the pairs that are probed at once. A large cluster shows its pairs as they
	// begin to fetch.
	maxProbes = 1024
	// toldWithin is the time that workers have to report their measurements.
	toldWithin = 5 * time.Second
)

// pairs lists how workers fetch from each other. If it is asked to probe, it makes pairs fetch that
// have not done so.
func (a *app) pairs(ctx context.Context, c *millrace.Client) ([]pair, []*millracev1.Worker, error) {
	workers, err := c.FullWorkers(ctx, millracev1.WorkerState_WORKER_STATE_ACTIVE)
	if err != nil {
		return nil, nil, err
	}
	known := pairsOf(workers)
	if !a.settings.Bool("probe") {
		return known, workers, nil
	}
	var unknown []probe
	for _, reader := range workers {
		for _, source := range workers {
			if reader != source && !slices.ContainsFunc(known, func(p pair) bool { return p.Reader == reader.GetName() && p.Source == source.GetName() }) {
				unknown = append(unknown, probe{reader.GetName(), source.GetName()})
			}
		}
	}
	if len(unknown) > maxProbes {
		_, _ = fmt.Fprintf(a.err, "%d of %d unknown pairs are probed\n", maxProbes, len(unknown))
		unknown = unknown[:maxProbes]
	}
	if len(unknown) == 0 {
		return known, workers, nil
	}
	if err := probeAll(ctx, c, unknown); err != nil {
		return nil, nil, fmt.Errorf("probe how workers fetch from each other: %w; --probe=false shows what is known", err)
	}
	want := len(known) + len(unknown)
	for told := time.Now().Add(toldWithin); open(known) < want && time.Now().Before(told) && ctx.Err() == nil; {
		if workers, err = c.FullWorkers(ctx, millracev1.WorkerState_WORKER_STATE_ACTIVE); err != nil {
			return nil, nil, err
		}
		known = pairsOf(workers)
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond): // workers report once a second
		}
	}
	return known, workers, nil
}

// open counts the pairs that have a path.
func open(pairs []pair) (n int) {
	for _, p := range pairs {
		if p.Path != "" {
			n++
		}
	}
	return n
}

// probe is a pair of workers that is to fetch an object.
type probe struct{ reader, source string }

// probeAll makes each reader use objects of its source, one pair after the other so that they do
// not share the link. The first object makes the connection, the small one measures the latency,
// and the last one the rate.
func probeAll(ctx context.Context, c *millrace.Client, probes []probe) error {
	use := func(p probe, elements int) error {
		of, err := c.Submit(ctx, millrace.Native("array.full"), millrace.Args([]any{elements}, 1.0), millrace.WithWorkers(p.source))
		if err != nil {
			return err
		}
		defer of.Release()
		used, err := c.Submit(ctx, millrace.Native("bench.noop"), millrace.Args(of), millrace.WithWorkers(p.reader))
		if err != nil {
			return err
		}
		defer used.Release()
		return used.Wait(ctx)
	}
	for _, p := range probes {
		for _, elements := range []int{smallElements, smallElements, probeElements, probeElements} {
			if err := use(p, elements); err != nil {
				return err
			}
		}
	}
	return nil
}

// pair describes how one worker fetches from another one.
type pair struct {
	Reader    string  `json:"reader"`
	Source    string  `json:"source"`
	Path      string  `json:"path"` // empty: no path works
	Transport string  `json:"transport,omitempty"`
	GBPerS    float64 `json:"gb_per_s"`
	LatencyUS float64 `json:"latency_us"`
	Bytes     uint64  `json:"bytes"`
	// Better are the paths with a higher priority, with the reasons why they are not used.
	Better []refused `json:"better"`
}

type refused struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

func pairsOf(workers []*millracev1.Worker) []pair {
	active := make(map[uint32]bool)
	for _, w := range workers {
		active[w.GetWorkerId()] = w.GetState() == millracev1.WorkerState_WORKER_STATE_ACTIVE
	}
	pairs := []pair{}
	for _, w := range workers {
		if !active[w.GetWorkerId()] {
			continue
		}
		routes := w.GetRoutes()
		for len(routes) > 0 {
			n := 1
			for n < len(routes) && routes[n].GetPeerWorkerId() == routes[0].GetPeerWorkerId() {
				n++
			}
			if active[routes[0].GetPeerWorkerId()] {
				pairs = append(pairs, pairOf(w.GetName(), routes[:n]))
			}
			routes = routes[n:]
		}
	}
	slices.SortFunc(pairs, func(a, b pair) int { return cmp.Or(cmp.Compare(a.Reader, b.Reader), cmp.Compare(a.Source, b.Source)) })
	return pairs
}

// pairOf finds the first open route in the list; the worker lists the best ones first.
func pairOf(reader string, routes []*millracev1.Route) pair {
	out := pair{Reader: reader, Source: routes[0].GetPeer(), Better: []refused{}}
	for _, r := range routes {
		out.Bytes += r.GetReceivedBytes()
		if out.Path != "" {
			continue
		}
		path := strings.ToLower(short(r.GetPath(), "TRANSFER_PATH_"))
		if r.GetState() != millracev1.RouteState_ROUTE_STATE_OPEN {
			out.Better = append(out.Better, refused{path, cmp.Or(r.GetReason(), "nothing was fetched by it yet")})
			continue
		}
		out.Path, out.Transport, out.GBPerS = path, r.GetTransport(), r.GetBytesPerSecond()/1e9
		out.LatencyUS = float64(r.GetLatency().AsDuration()) / float64(time.Microsecond)
	}
	return out
}

func (a *app) topoTable(pairs []pair, workers []*millracev1.Worker) error {
	gpus := tabwriter.NewWriter(a.out, 0, 8, 2, ' ', 0)
	gpuTable(gpus, workers)
	if err := gpus.Flush(); err != nil {
		return err
	}
	w := tabwriter.NewWriter(a.out, 0, 8, 2, ' ', 0)
	row(w, "READER", "SOURCE", "PATH", "GB/S", "SMALL", "BYTES", "NOT BY")
	for _, p := range pairs {
		path, rate, latency, better := p.Path, "-", "-", ""
		if path == "" {
			path = "none"
		}
		if p.Transport != "" {
			path += " (" + p.Transport + ")"
		}
		if p.GBPerS > 0 {
			rate = figure(p.GBPerS)
		}
		if p.LatencyUS > 0 {
			latency = figure(p.LatencyUS) + " µs"
		}
		for i, r := range p.Better {
			if i > 0 {
				better += "; "
			}
			better += fmt.Sprintf("%s: %s", r.Path, r.Why)
		}
		row(w, p.Reader, p.Source, path, rate, latency, size(p.Bytes), better)
	}
	return w.Flush()
}
