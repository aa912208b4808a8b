package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/text"
)

func (a *app) topo() *cobra.Command {
	cmd := &cobra.Command{
		Use: "topo", Short: "Show GPUs, their links, and by which path workers fetch from each other, how fast", Args: noArgs,
		Long: `Shows the GPUs of workers, their links, NUMA nodes and network cards, and for each pair of workers the path that
is taken, its measured rate, the rate that was timed when it connected, the latency of small objects, and for each better
path why it is not taken. "staged" says that bytes of a GPU go through pinned host memory on the way. Pairs that have fetched
nothing yet are probed: each worker fetches an object of 4 MiB and a small one from each other worker.`,
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
	Staged    string  `json:"staged,omitempty"` // the ends whose bytes go through host memory
	GBPerS    float64 `json:"gb_per_s"`
	// ConnectGBPerS was timed when the path connected.
	ConnectGBPerS float64 `json:"connect_gb_per_s,omitempty"`
	LatencyUS     float64 `json:"latency_us"`
	Bytes         uint64  `json:"bytes"`
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
		for peer, p := range peersOf(w) {
			if active[peer] {
				pairs = append(pairs, p)
			}
		}
	}
	slices.SortFunc(pairs, func(a, b pair) int { return cmp.Or(cmp.Compare(a.Reader, b.Reader), cmp.Compare(a.Source, b.Source)) })
	return pairs
}

// peersOf iterates over the peers from which a worker fetches, with their numbers.
func peersOf(w *millracev1.Worker) iter.Seq2[uint32, pair] {
	return func(yield func(uint32, pair) bool) {
		routes := w.GetRoutes()
		for len(routes) > 0 {
			n := 1
			for n < len(routes) && routes[n].GetPeerWorkerId() == routes[0].GetPeerWorkerId() {
				n++
			}
			if !yield(routes[0].GetPeerWorkerId(), pairOf(w.GetName(), routes[:n])) {
				return
			}
			routes = routes[n:]
		}
	}
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
		out.Path, out.Transport, out.Staged = path, r.GetTransport(), r.GetStaged()
		out.GBPerS, out.ConnectGBPerS = r.GetBytesPerSecond()/1e9, r.GetConnectBytesPerSecond()/1e9
		if why := r.GetConnectionReason(); why != "" {
			out.Better = append(out.Better, refused{"better " + path, why})
		}
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
	row(w, "READER", "SOURCE", "PATH", "GB/S", "AT CONNECT", "SMALL", "BYTES", "NOT BY")
	for _, p := range pairs {
		row(w, p.Reader, p.Source, p.lane(), positive(p.GBPerS, ""), positive(p.ConnectGBPerS, ""), positive(p.LatencyUS, " µs"), size(p.Bytes), p.notBy())
	}
	return w.Flush()
}

// positive describes a measured figure; it is "-" if nothing was measured.
func positive(x float64, unit string) string {
	if x <= 0 {
		return "-"
	}
	return figure(x) + unit
}

// lane describes the way of the bytes: "ucx (rc_mlx5, staged at both ends)".
func (p *pair) lane() string { return cmp.Or(p.Path, "none") + text.Lane(p.Transport, p.Staged) }

// notBy lists the better paths with the reasons why they are not used.
func (p *pair) notBy() string {
	var list []string
	for _, r := range p.Better {
		list = append(list, r.Path+": "+r.Why)
	}
	return strings.Join(list, "; ")
}

// laneCell counts the peers of a worker by the ways of their bytes, and has the lowest rate of each
// that was timed at connect: "ipc: 7 peers; ucx (rc_mlx5): 8 peers, at least 23.1 GB/s".
func laneCell(w *millracev1.Worker) string {
	type group struct {
		lane    string
		peers   int
		slowest float64 // 0: not timed
	}
	var groups []*group
	for _, p := range peersOf(w) {
		if p.Path == "ipc" {
			p.Transport = "" // the text has rates, which differ between peers
		}
		lane := p.lane()
		at := slices.IndexFunc(groups, func(g *group) bool { return g.lane == lane })
		if at < 0 {
			at, groups = len(groups), append(groups, &group{lane: lane})
		}
		g := groups[at]
		g.peers++
		if p.ConnectGBPerS > 0 && (g.slowest == 0 || p.ConnectGBPerS < g.slowest) {
			g.slowest = p.ConnectGBPerS
		}
	}
	slices.SortFunc(groups, func(a, b *group) int { return cmp.Compare(a.lane, b.lane) })
	var list []string
	for _, g := range groups {
		cell := g.lane + ": " + several(g.peers, "peer")
		if g.slowest > 0 {
			cell += ", at least " + figure(g.slowest) + " GB/s"
		}
		list = append(list, cell)
	}
	return cmp.Or(strings.Join(list, "; "), "-")
}

// laneText describes the way from one peer, for the description of the worker that reads it.
func laneText(p *pair) string {
	s := p.lane()
	if p.GBPerS > 0 {
		s += ", " + figure(p.GBPerS) + " GB/s"
	}
	if p.ConnectGBPerS > 0 {
		s += ", " + figure(p.ConnectGBPerS) + " GB/s at connect"
	}
	if why := p.notBy(); why != "" {
		s += "; not by " + why
	}
	return s
}
