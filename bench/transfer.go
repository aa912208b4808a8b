package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/roletoken"
	"github.com/millrace/millrace/internal/version"
	"github.com/millrace/millrace/transfer/ucx"
)

// TransferConfig configures `bench transfer`.
type TransferConfig struct {
	// Executable is the millrace binary. Default: this program.
	Executable string
	// Protocols to measure: "auto", "borrow", "ucx", "grpc"; "ipc" with GPUs.
	Protocols []string
	// GPUs: the objects are in the memory of two GPUs.
	GPUs bool
	// CUDALibrary is the driver; "": the system's. Environment holds further variables for the
	// processes.
	CUDALibrary string
	Environment []string
	// UCX has the library, transports and network devices of the workers and of raw reads.
	UCX   ucx.Config
	Sizes []int
	// Objects lists numbers of objects that a task needs. Numbers above 1 are measured only for
	// sizes from severalFrom on, and if the objects fit together. Default: 1.
	Objects []int
	// Samples per size. 0: 200, and 20 for sizes above 4 MiB.
	Samples  int
	Progress func(done, of int)
}

// TransferRow is the result for one size and one protocol: tasks on one worker make objects, and a
// task on the other worker uses them. The times are from the submission of the second task to its
// result. The median of a task without inputs is subtracted; it is submitted in the same rhythm,
// after a task on the other worker.
type TransferRow struct {
	// Bytes is the size of one object. Rate and all later fields are for all Objects together.
	Bytes    int     `json:"bytes"`
	Objects  int     `json:"objects"`
	Protocol string  `json:"protocol"`
	Path     string  `json:"path"`
	Rate     float64 `json:"gb_per_s"`
	P50      float64 `json:"us_p50"`
	P99      float64 `json:"us_p99"`
	Samples  int     `json:"samples"`
	// The Worker fields are for the same fetches, as the reader reports them: the time from the
	// reader's order of the first object until the task could use the last one. For single objects,
	// Begun, Placed and Arrived are medians of the steps on the way: the fetch began, had memory
	// for the object, and had the object. They are 0 if nothing is fetched because memory is used
	// in place. WorkerRate and WorkerRatio belong to WorkerP50.
	WorkerRate float64 `json:"worker_gb_per_s,omitempty"`
	WorkerP50  float64 `json:"worker_us_p50,omitempty"`
	WorkerP99  float64 `json:"worker_us_p99,omitempty"`
	Begun      float64 `json:"worker_us_begun,omitempty"`
	Placed     float64 `json:"worker_us_placed,omitempty"`
	Arrived    float64 `json:"worker_us_arrived,omitempty"`
	// Raw is the same transfer without tasks and objects, in the same run: a UCX read of the
	// source's memory, a copy by the driver from the source's mapped memory to the reader's GPU, or
	// a plain TCP stream. Memory that is used in place has no raw counterpart.
	RawRate float64 `json:"raw_gb_per_s,omitempty"`
	RawP50  float64 `json:"raw_us_p50,omitempty"`
	// RestedP50 is for plain copies by the driver in the rhythm of the fetches, with a pause of 2
	// ms before each. The other plain copies follow each other at once.
	RestedP50 float64 `json:"raw_rested_us_p50,omitempty"`
	// Ratio and WorkerRatio are the client's and the worker's rates relative to the raw one.
	Ratio       float64 `json:"ratio,omitempty"`
	WorkerRatio float64 `json:"worker_ratio,omitempty"`
}

// TransferResult is the result of `bench transfer`.
type TransferResult struct {
	Bench   string        `json:"bench"`
	Memory  string        `json:"memory"`
	Rows    []TransferRow `json:"rows"`
	EmptyUS float64       `json:"empty_task_us"`
	Version string        `json:"version"`
	Machine string        `json:"machine"`
}

// Transfer measures transfers of objects from worker to worker.
func Transfer(ctx context.Context, c TransferConfig) (out TransferResult, err error) {
	if len(c.Objects) == 0 {
		c.Objects = []int{1}
	}
	largest := 0
	for _, size := range c.Sizes {
		for _, n := range c.counts(size) {
			largest = max(largest, size*n)
		}
	}
	for i, protocol := range c.Protocols {
		if err := transferBy(ctx, c, protocol, largest, &out); err != nil {
			return out, fmt.Errorf("bench transfer by %s: %w", protocol, err)
		}
		if c.Progress != nil {
			c.Progress(i+1, len(c.Protocols))
		}
	}
	out.Memory = memoryName(c.GPUs)
	out.Bench, out.Version, out.Machine = "transfer", version.String(), Machine()
	return out, nil
}

const (
	// severalFrom is the size from which tasks with several objects are measured, too.
	severalFrom = 64 << 20
	// severalBytes and severalHostBytes bound the size of several objects together. Two GPUs have
	// at least that memory; a host with two workers may have less.
	severalBytes, severalHostBytes = 8 << 30, 1 << 30
)

// counts returns the numbers of objects that are measured for a size.
func (c *TransferConfig) counts(size int) (counts []int) {
	most := severalHostBytes
	if c.GPUs {
		most = severalBytes
	}
	for _, n := range c.Objects {
		if n == 1 || size >= severalFrom && n*size <= most {
			counts = append(counts, n)
		}
	}
	return counts
}

func transferBy(ctx context.Context, c TransferConfig, protocol string, largest int, out *TransferResult) (err error) {
	arguments := []string{"--protocol", protocol}
	if c.CUDALibrary != "" {
		arguments = append(arguments, "--cuda-library", c.CUDALibrary)
	}
	for flag, value := range map[string]string{"--ucx-library": c.UCX.Library, "--ucx-tls": c.UCX.TLS, "--ucx-net-devices": c.UCX.NetDevices} {
		if value != "" {
			arguments = append(arguments, flag, value)
		}
	}
	cluster, err := StartCluster(ctx, ClusterConfig{
		Executable: c.Executable, Workers: 2, Slots: 1, MemoryLimit: fmt.Sprint(uint64(largest)*3 + 64<<20), GPUs: c.GPUs,
		Environment: c.Environment, Arguments: arguments,
	})
	if err != nil {
		return err
	}
	defer func() {
		if closed := cluster.Close(); err == nil {
			err = closed
		}
	}()
	t := &transferring{
		pair: pair{client: cluster.Client, source: transferSource, reader: transferReader}, cluster: cluster, protocol: protocol, library: c.CUDALibrary, ucx: c.UCX,
	}
	for _, size := range c.Sizes {
		samples := c.Samples
		if samples == 0 {
			if samples = 200; size > 4<<20 {
				samples = 20
			}
		}
		for _, n := range c.counts(size) {
			row, err := t.measure(ctx, size, n, samples)
			if err != nil {
				return fmt.Errorf("%d of %d bytes: %w", n, size, err)
			}
			out.Rows = append(out.Rows, row)
		}
	}
	out.EmptyUS = percentiles(t.empty).P50
	return nil
}

type transferring struct {
	pair
	cluster  *Cluster
	protocol string
	library  string
	ucx      ucx.Config
	// empty holds the times of tasks without inputs.
	empty []time.Duration
}

const (
	transferSource = "host-0"
	transferReader = "host-1"
	warmUps        = 5
)

func (t *transferring) measure(ctx context.Context, size, objects, samples int) (row TransferRow, err error) {
	var took, empties []time.Duration
	var tasks [][]uint64
	bytes := size * objects
	for i := range samples + warmUps {
		d, empty, made, err := t.once(ctx, size, objects, i)
		if err != nil {
			return row, err
		}
		if i >= warmUps {
			took, empties, tasks = append(took, d), append(empties, empty), append(tasks, made)
		}
		if err := t.cluster.settle(ctx); err != nil {
			return row, err
		}
	}
	t.empty = append(t.empty, empties...)
	slices.Sort(empties)
	for i := range took {
		took[i] = max(took[i]-empties[len(empties)/2], time.Microsecond)
	}
	p := percentiles(took)
	row = TransferRow{
		Bytes: size, Objects: objects, Protocol: t.protocol, P50: p.P50, P99: p.P99, Samples: samples, Rate: float64(bytes) / p.P50 / 1e3,
	}
	if row.Path, err = t.pathTaken(ctx); err != nil {
		return row, err
	}
	if err := t.addReported(ctx, &row, tasks); err != nil {
		return row, err
	}
	var raw []time.Duration
	switch row.Path {
	case "ucx":
		raw, err = t.rawUCX(ctx, bytes)
	case "ipc":
		pair := [2]string{transferSource, transferReader}
		var hot, rested [][]time.Duration
		if hot, err = t.cluster.driverCopies(ctx, t.library, bytes, 0, pair); err == nil {
			rested, err = t.cluster.driverCopies(ctx, t.library, bytes, pollEvery, pair)
		}
		if err == nil {
			raw, row.RestedP50 = hot[0], percentiles(rested[0]).P50
		}
	case "grpc":
		raw, err = rawTCP(bytes)
	}
	if err != nil || len(raw) == 0 {
		return row, err
	}
	row.RawP50 = percentiles(raw).P50
	row.RawRate = float64(bytes) / row.RawP50 / 1e3
	row.Ratio, row.WorkerRatio = row.Rate/row.RawRate, row.WorkerRate/row.RawRate
	return row, nil
}

// addReported adds the reader's report about the last fetches to the row.
func (t *transferring) addReported(ctx context.Context, row *TransferRow, tasks [][]uint64) error {
	seen, err := t.cluster.fetched(ctx, transferReader)
	if err != nil {
		return err
	}
	spans := seen.spans(tasks)
	if len(spans) == 0 {
		return nil
	}
	p := percentiles(spans)
	row.WorkerP50, row.WorkerP99, row.WorkerRate = p.P50, p.P99, float64(row.Bytes*row.Objects)/p.P50/1e3
	if row.Objects == 1 {
		row.Begun, row.Placed, row.Arrived = seen.steps(slices.Concat(tasks...))
	}
	return nil
}

// pathTaken returns the path by which the reader got most of its bytes.
func (t *transferring) pathTaken(ctx context.Context) (string, error) {
	// Workers report about once a second.
	for limit := time.Now().Add(startTimeout); ; {
		workers, err := t.client.FullWorkers(ctx)
		if err != nil {
			return "", err
		}
		for _, w := range workers {
			routes := w.GetRoutes()
			if w.GetName() != transferReader || len(routes) == 0 {
				continue
			}
			best := slices.MaxFunc(routes, func(a, b *millracev1.Route) int { return cmp.Compare(a.GetReceivedBytes(), b.GetReceivedBytes()) })
			return pathName(best.GetPath()), nil
		}
		if time.Now().After(limit) {
			return "", errors.New("the reader reported no path")
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(20 * pollEvery):
		}
	}
}

// token returns the token of the cluster's workers: a benchmark that reads a worker's memory
// directly acts as a worker.
func (c *Cluster) token() (string, error) {
	text, err := os.ReadFile(c.File)
	if err != nil {
		return "", err
	}
	var file struct {
		Token string `json:"token"`
	}
	err = json.Unmarshal(text, &file)
	return roletoken.Worker(file.Token), err
}

// rawUCX reads memory of the source directly into a slab of this process.
func (t *transferring) rawUCX(ctx context.Context, size int) (took []time.Duration, err error) {
	token, err := t.cluster.token()
	if err != nil {
		return nil, err
	}
	raw, err := openRaw(rawConfig{Token: token, Bytes: size, UCX: t.ucx})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, raw.close()) }()
	workers, err := byName(ctx, t.client)
	if err != nil {
		return nil, err
	}
	if workers[t.source] == nil {
		return nil, fmt.Errorf("there is no worker %s", t.source)
	}
	return raw.read(ctx, workers[t.source], size, rawTimes)
}

// rawTCP sends bytes over a plain connection on this host, each time after a byte that asks for
// them.
func rawTCP(size int) (took []time.Duration, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, listener.Close()) }()
	sent := make(chan error, 1)
	go func() {
		sent <- func() error {
			conn, err := listener.Accept()
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close() }()
			data, ask := make([]byte, size), make([]byte, 1)
			for {
				if _, err := io.ReadFull(conn, ask); err != nil {
					if errors.Is(err, io.EOF) {
						return nil
					}
					return err
				}
				if _, err := conn.Write(data); err != nil {
					return err
				}
			}
		}()
	}()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		return nil, err
	}
	data := make([]byte, size)
	for i := range rawTimes + warmUps {
		began := time.Now()
		if _, err = conn.Write([]byte{1}); err == nil {
			_, err = io.ReadFull(conn, data)
		}
		if err != nil {
			break
		}
		if i >= warmUps {
			took = append(took, time.Since(began))
		}
	}
	return took, errors.Join(err, conn.Close(), <-sent)
}
