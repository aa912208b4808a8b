package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

func (a *app) topo() *cobra.Command {
	cmd := &cobra.Command{
		Use: "topo", Short: "Show by which path each worker fetches from each other, how fast, and why not by a better one", Args: noArgs,
		Long: `Shows each pair of workers that fetched something: the path that is taken, its measured rate and the latency of small
objects, and for each better path why it is not taken. Pairs that have fetched nothing are not known yet.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.call(cmd, func(ctx context.Context, c *millrace.Client, _ millracev1.SchedulerServiceClient) error {
				workers, err := c.Workers(ctx)
				if err != nil {
					return err
				}
				pairs := pairsOf(workers)
				if a.settings.Bool("json") {
					return json.NewEncoder(a.out).Encode(map[string]any{"pairs": pairs})
				}
				return a.topoTable(pairs)
			})
		},
	}
	addCall(cmd)
	cmd.Flags().Bool("json", false, "print one JSON object instead of a table")
	return cmd
}

// pair is how one worker fetches from another one.
type pair struct {
	Reader    string  `json:"reader"`
	Source    string  `json:"source"`
	Path      string  `json:"path"` // Empty: none is taken.
	GBPerS    float64 `json:"gb_per_s"`
	LatencyUS float64 `json:"latency_us"`
	Bytes     uint64  `json:"bytes"`
	// Better are the paths above it, with why they are not taken.
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
		lanes := w.GetLanes()
		for len(lanes) > 0 {
			n := 1
			for n < len(lanes) && lanes[n].GetPeerWorkerId() == lanes[0].GetPeerWorkerId() {
				n++
			}
			if active[lanes[0].GetPeerWorkerId()] {
				pairs = append(pairs, pairOf(w.GetName(), lanes[:n]))
			}
			lanes = lanes[n:]
		}
	}
	slices.SortFunc(pairs, func(a, b pair) int { return cmp.Or(cmp.Compare(a.Reader, b.Reader), cmp.Compare(a.Source, b.Source)) })
	return pairs
}

// pairOf looks for the best lane that works.
func pairOf(reader string, lanes []*millracev1.Lane) pair {
	out := pair{Reader: reader, Source: lanes[0].GetPeer(), Better: []refused{}}
	for _, l := range lanes {
		out.Bytes += l.GetBytes()
		if out.Path != "" {
			continue
		}
		if l.GetState() != millracev1.LaneState_LANE_STATE_OPEN {
			why := l.GetWhy()
			if why == "" {
				why = "nothing was fetched by it yet"
			}
			out.Better = append(out.Better, refused{l.GetPath(), why})
			continue
		}
		out.Path, out.GBPerS = l.GetPath(), l.GetBytesPerSecond()/1e9
		out.LatencyUS = float64(l.GetLatencyNanos()) / float64(time.Microsecond)
	}
	return out
}

func (a *app) topoTable(pairs []pair) error {
	w := tabwriter.NewWriter(a.out, 0, 8, 2, ' ', 0)
	row(w, "READER", "SOURCE", "PATH", "GB/S", "SMALL", "BYTES", "NOT BY")
	for _, p := range pairs {
		path, rate, latency, better := p.Path, "-", "-", ""
		if path == "" {
			path = "none"
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
