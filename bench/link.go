package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/text"
	"github.com/millrace/millrace/internal/version"
	"github.com/millrace/millrace/transfer/ucx"
)

// LinkConfig configures `bench transfer --hosts`, which measures a cluster that runs.
type LinkConfig struct {
	Client *millrace.Client
	// Token is the token of workers, for raw reads.
	Token string
	// Source and Reader are the name of a worker or of a host: the reader's tasks use objects that
	// the source's tasks made.
	Source, Reader string
	// GPUs: the objects are in the memory of GPUs. A host's name then means its first worker on a
	// GPU.
	GPUs bool
	// UCX has the library and the transports for raw reads, CUDALibrary the driver.
	UCX         ucx.Config
	CUDALibrary string
	Sizes       []int
	// Objects lists numbers of objects that a task needs. Numbers above 1 are measured only where
	// the objects have up to linkTogether together.
	Objects []int
	// Samples of each size. 0: 50, and 20 from 64 MiB on.
	Samples  int
	Progress func(done, of int)
}

// linkTogether bounds the size of several objects together.
const linkTogether = 256 << 20

// LinkRow is the result for one size. Its times are those that the reader reports: from its order
// of the first object until the task could use the last one. If the reader used the objects in
// place, it fetched nothing, and they are 0.
type LinkRow struct {
	// Bytes is the size of one object. All later fields are for all Objects together.
	Bytes   int `json:"bytes"`
	Objects int `json:"objects"`
	// Lane is the path that carried most of the bytes, with its transport.
	Lane    string  `json:"lane"`
	Rate    float64 `json:"gb_per_s"`
	P50     float64 `json:"us_p50"`
	Times   Spread  `json:"us"`
	Samples int     `json:"samples"`
	// ClientP50 is the time from the submission of the task until its result.
	ClientP50 float64 `json:"client_us_p50"`
	// The Raw fields are for reads of the same size by UCX alone, in the same run.
	RawRate  float64 `json:"raw_gb_per_s,omitempty"`
	RawP50   float64 `json:"raw_us_p50,omitempty"`
	RawTimes Spread  `json:"raw_us,omitzero"`
	// Ratio is Rate relative to RawRate.
	Ratio float64 `json:"ratio,omitempty"`
}

// LinkResult is the result of `bench transfer --hosts`.
type LinkResult struct {
	Bench  string `json:"bench"`
	Memory string `json:"memory"`
	// Source and Reader are the workers and their hosts.
	Source string    `json:"source"`
	Reader string    `json:"reader"`
	Rows   []LinkRow `json:"rows"`
	// Raw describes the raw reads, or says why there are none.
	Raw     string `json:"raw"`
	Version string `json:"version"`
	Machine string `json:"machine"`
}

// linking is a measurement between two workers.
type linking struct {
	pair
	from, to *millracev1.Worker
}

// Link measures how fast one worker of a cluster reads objects of another one.
func Link(ctx context.Context, c LinkConfig) (out LinkResult, err error) {
	l, err := newLinking(ctx, c)
	if err != nil {
		return out, err
	}
	out = LinkResult{
		Bench: "transfer", Memory: memoryName(c.GPUs), Source: nameOf(l.from), Reader: nameOf(l.to), Version: version.String(), Machine: Machine(),
	}
	type work struct{ size, objects int }
	var all []work
	largest := 0
	for _, size := range c.Sizes {
		for _, n := range c.Objects {
			if n == 1 || n*size <= linkTogether {
				all, largest = append(all, work{size, n}), max(largest, size*n)
			}
		}
	}
	if len(all) == 0 {
		return out, fmt.Errorf("--objects, --sizes: several objects are measured where they have up to %s together, and these have more", humanize.IBytes(linkTogether))
	}
	for i, w := range all {
		samples := c.Samples
		if samples == 0 {
			if samples = 50; w.size*w.objects >= severalFrom {
				samples = 20
			}
		}
		row, err := l.measure(ctx, w.size, w.objects, samples)
		if err != nil {
			return out, fmt.Errorf("bench transfer from %s to %s: %d of %d bytes: %w", out.Source, out.Reader, w.objects, w.size, err)
		}
		out.Rows = append(out.Rows, row)
		if c.Progress != nil {
			c.Progress(i+1, len(all))
		}
	}
	out.Raw, err = l.addRaw(ctx, c, largest, out.Rows)
	return out, err
}

func memoryName(gpus bool) string {
	if gpus {
		return "cuda"
	}
	return "host"
}

func nameOf(w *millracev1.Worker) string { return w.GetName() + " on " + w.GetHost() }

func newLinking(ctx context.Context, c LinkConfig) (*linking, error) {
	workers, err := c.Client.FullWorkers(ctx, millracev1.WorkerState_WORKER_STATE_ACTIVE)
	if err != nil {
		return nil, err
	}
	from, err := pick(workers, c.Source, c.GPUs, nil)
	if err != nil {
		return nil, err
	}
	to, err := pick(workers, c.Reader, c.GPUs, from)
	if err != nil {
		return nil, err
	}
	return &linking{pair: pair{client: c.Client, source: from.GetName(), reader: to.GetName()}, from: from, to: to}, nil
}

// pick finds the worker that a name means: a worker, or the first one of a host with the wanted
// kind of memory. It never returns the worker other.
func pick(workers []*millracev1.Worker, name string, gpus bool, other *millracev1.Worker) (*millracev1.Worker, error) {
	slices.SortFunc(workers, func(a, b *millracev1.Worker) int { return cmp.Compare(a.GetName(), b.GetName()) })
	fits := func(w *millracev1.Worker) bool { return (w.GetGpu() != nil) == gpus }
	var known []string
	there := false
	for _, w := range workers {
		switch {
		case w.GetName() == name && w == other:
			return nil, fmt.Errorf("--hosts: %s is named twice; name two workers, or two hosts", name)
		case w.GetName() == name && !fits(w):
			return nil, fmt.Errorf("--memory %s: the objects of worker %s are in other memory; use --memory %s, or name another worker with --hosts", memoryName(gpus), name, memoryName(!gpus))
		case w.GetName() == name:
			return w, nil
		}
		there = there || w.GetHost() == name
		known = append(known, nameOf(w))
	}
	for _, w := range workers {
		if w.GetHost() == name && w != other && fits(w) {
			return w, nil
		}
	}
	if there {
		return nil, fmt.Errorf("--hosts %s: the host has no further active worker with memory of the kind --memory %s; there are %s", name, memoryName(gpus), strings.Join(known, ", "))
	}
	return nil, fmt.Errorf("--hosts %s: neither an active worker nor the host of one; there are %s", name, cmp.Or(strings.Join(known, ", "), "none"))
}

// measure times transfers of several objects of one size.
func (l *linking) measure(ctx context.Context, size, objects, samples int) (row LinkRow, err error) {
	before, err := l.routes(ctx)
	if err != nil {
		return row, err
	}
	var took, seen []time.Duration
	for i := range samples + warmUps {
		whole, spans, err := l.sample(ctx, size, objects, i)
		if err != nil {
			return row, err
		}
		if i >= warmUps {
			took, seen = append(took, whole), append(seen, spans...)
		}
	}
	row = LinkRow{Bytes: size, Objects: objects, Samples: samples, ClientP50: percentiles(took).P50}
	if len(seen) > 0 {
		row.P50, row.Times = percentiles(seen).P50, spread(seen)
		row.Rate = float64(size*objects) / row.P50 / 1e3
	}
	row.Lane, err = l.lane(ctx, before, uint64(size*objects*(samples+warmUps)))
	return row, err
}

// spread returns the shortest and the longest time, in microseconds.
func spread(times []time.Duration) Spread {
	return Spread{Min: micros(slices.Min(times)), Max: micros(slices.Max(times))}
}

// sample times one task with objects of the source. It returns the client's time, and the reader's,
// if the reader fetched the objects.
func (l *linking) sample(ctx context.Context, size, objects, i int) (took time.Duration, spans []time.Duration, err error) {
	took, tasks, err := l.transfer(ctx, size, objects, float64(i))
	if err != nil {
		return 0, nil, err
	}
	seen, err := fetchesOf(ctx, l.client, l.reader)
	if err != nil {
		return 0, nil, err
	}
	return took, seen.spans([][]uint64{tasks}), l.gone(ctx, tasks[len(tasks)-1])
}

// gone waits until the scheduler has forgotten a task that was released. The memory of its result
// is then free, or soon will be.
func (l *linking) gone(ctx context.Context, task uint64) error {
	for {
		_, err := l.client.Scheduler().GetTask(ctx, &millracev1.GetTaskRequest{Task: &millracev1.TaskRef{Task: &millracev1.TaskRef_Id{Id: task}}})
		if status.Code(err) == codes.NotFound {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollEvery):
		}
	}
}

// routes returns the reader's paths to the source.
func (l *linking) routes(ctx context.Context) (routes []*millracev1.Route, err error) {
	w, err := l.client.Worker(ctx, l.reader)
	if err != nil {
		return nil, err
	}
	for _, r := range w.GetRoutes() {
		if r.GetPeerWorkerId() == l.from.GetWorkerId() {
			routes = append(routes, r)
		}
	}
	return routes, nil
}

// reportedWithin is the time that a worker has to report the bytes that it received; it reports
// about once a second.
const reportedWithin = 5 * time.Second

// lane returns the path by which most bytes have come since the given routes.
func (l *linking) lane(ctx context.Context, before []*millracev1.Route, bytes uint64) (string, error) {
	earlier := func(r *millracev1.Route) (n uint64) {
		for _, b := range before {
			if b.GetPath() == r.GetPath() {
				n = b.GetReceivedBytes()
			}
		}
		return n
	}
	for limit := time.Now().Add(reportedWithin); ; {
		now, err := l.routes(ctx)
		if err != nil {
			return "", err
		}
		var best *millracev1.Route
		var sum, most uint64
		for _, r := range now {
			came := r.GetReceivedBytes() - min(earlier(r), r.GetReceivedBytes())
			if sum += came; came > most || best == nil && r.GetState() == millracev1.RouteState_ROUTE_STATE_OPEN {
				best, most = r, came
			}
		}
		if best != nil && (sum >= bytes || time.Now().After(limit)) {
			return pathName(best.GetPath()) + text.Lane(best.GetTransport(), best.GetStaged()), nil
		}
		if time.Now().After(limit) {
			return "", fmt.Errorf("%s reported no path to %s within %v", l.reader, l.source, reportedWithin)
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(20 * pollEvery):
		}
	}
}

// pathName is the name of a path as its settings have it.
func pathName(p millracev1.TransferPath) string {
	return strings.ToLower(strings.TrimPrefix(p.String(), "TRANSFER_PATH_"))
}

// addRaw adds raw reads to the rows, and describes them. It has no raw reads, and says why, if this
// process is not on the reader's host or the objects do not come by UCX.
func (l *linking) addRaw(ctx context.Context, c LinkConfig, largest int, rows []LinkRow) (what string, err error) {
	here, err := os.Hostname()
	if err != nil {
		return "", err
	}
	if here != l.to.GetHost() {
		return fmt.Sprintf("none: they are reads by this process, which is on %s; run this command on %s, where the reader is", here, l.to.GetHost()), nil
	}
	if !slices.ContainsFunc(rows, func(r LinkRow) bool { return strings.HasPrefix(r.Lane, "ucx") }) {
		return "none: the objects do not come by UCX, as the lane says", nil
	}
	config := rawConfig{Token: c.Token, Bytes: largest, CUDALibrary: c.CUDALibrary, UCX: c.UCX}
	if c.GPUs {
		config.GPU = l.to.GetGpu().GetUuid()
	}
	if config.UCX.NetDevices == "" {
		config.UCX.NetDevices = l.to.GetGpu().GetNetDevices()
	}
	raw, err := openRaw(config)
	if err != nil {
		return fmt.Sprintf("none: %v", err), nil
	}
	defer func() { err = errors.Join(err, raw.close()) }()
	connection, err := raw.connect(ctx, l.from)
	if err != nil {
		return fmt.Sprintf("none: %v", err), nil
	}
	for i := range rows {
		row := &rows[i]
		took, err := raw.read(ctx, l.from, row.Bytes*row.Objects, row.Samples)
		if err != nil {
			return fmt.Sprintf("none of %d bytes: %v", row.Bytes*row.Objects, err), nil
		}
		row.RawP50, row.RawTimes = percentiles(took).P50, spread(took)
		row.RawRate = float64(row.Bytes*row.Objects) / row.RawP50 / 1e3
		row.Ratio = row.Rate / row.RawRate
	}
	what = fmt.Sprintf("reads by UCX alone (%s) of the slab of %s into %s memory of this process", connection, l.source, memoryName(c.GPUs))
	if connection.Staged != "" && !connection.Emulated {
		what = fmt.Sprintf("reads by UCX alone (%s), without the copies between slabs and rings", connection)
	}
	return what, nil
}
