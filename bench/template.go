package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	millrace "github.com/millrace/millrace/clients/go"
	"github.com/millrace/millrace/internal/version"
)

// TemplateConfig configures `bench template`.
type TemplateConfig struct {
	// Executable is the millrace binary. Default: this program.
	Executable string
	// Tasks of one repetition, TasksPerInstance of each graph, and Batch graphs in one submission.
	Tasks, TasksPerInstance, Batch int
	Repetitions                    int
	Progress                       func(done, of int)
}

// TemplateRow is one way of submitting the same graphs.
type TemplateRow struct {
	// Way is plain or template.
	Way string `json:"way"`
	// Sent and Received are the bytes of messages between client and scheduler, without updates.
	Sent     float64 `json:"sent_bytes_per_task"`
	Received float64 `json:"received_bytes_per_task"`
	// Client is the CPU time of the client until the scheduler has accepted the tasks, with the
	// making of the tasks.
	Client Micros `json:"client_us_per_task"`
	// Scheduler is the CPU time of the scheduler until the tasks have ended.
	Scheduler Micros `json:"scheduler_us_per_task"`
}

// TemplateResult is the result of `bench template`.
type TemplateResult struct {
	Bench string        `json:"bench"`
	Rows  []TemplateRow `json:"rows"`
	// Ratios are those of plain to template: of all bytes, and of the client's time.
	BytesRatio       float64 `json:"bytes_ratio"`
	ClientRatio      float64 `json:"client_ratio"`
	Tasks            int     `json:"tasks"`
	TasksPerInstance int     `json:"tasks_per_instance"`
	Batch            int     `json:"batch"`
	Repetitions      int     `json:"repetitions"`
	// ClientSpread is that of client_ratio.
	ClientSpread Spread `json:"client_ratio_spread"`
	Version      string `json:"version"`
	Machine      string `json:"machine"`
}

// Template measures submissions of many graphs of one shape, plainly and as instances of a
// template, in turns. Workers answer at once without running anything.
func Template(ctx context.Context, c TemplateConfig) (out TemplateResult, err error) {
	if c.Tasks < 1 || c.TasksPerInstance < 1 || c.Batch < 1 || c.Repetitions < 1 {
		return out, errors.New("bench template: at least one task, task of an instance, instance of a batch and repetition")
	}
	cluster, err := StartCluster(ctx, ClusterConfig{Executable: c.Executable, Workers: 2, Zero: true})
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, cluster.Close()) }()
	traffic := &traffic{}
	client, err := millrace.Dial(ctx, millrace.WithSchedulerFile(cluster.File), millrace.WithName("bench"), millrace.WithDialOptions(grpc.WithStatsHandler(traffic)))
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	source, err := client.Submit(ctx, noop, millrace.Args())
	if err != nil {
		return out, err
	}
	if err := source.Wait(ctx); err != nil {
		return out, err
	}
	b := client.NewTemplate("pipeline")
	pipeline(b, c.TasksPerInstance, b.Value("rate", millrace.TypeDouble), b.Value("name", millrace.TypeString), b.Input("source"))
	template, err := b.Template()
	if err != nil {
		return out, err
	}
	batches := max(c.Tasks/(c.TasksPerInstance*c.Batch), 1)
	ways := []struct {
		name   string
		submit func() (Run, error)
	}{
		{"plain", func() (Run, error) {
			g := client.NewGraph("pipeline")
			for i := range c.Batch {
				pipeline(g, c.TasksPerInstance, float64(i), "instance", millrace.Key(source.Key()))
			}
			return g.Submit(ctx)
		}},
		{"template", func() (Run, error) {
			instances := make([]millrace.Instance, c.Batch)
			for i := range instances {
				instances[i] = millrace.Instance{Values: []any{float64(i), "instance"}, Inputs: []any{source}}
			}
			return template.Run(ctx, instances...)
		}},
	}
	type pair struct{ plain, template TemplateRow }
	var pairs []pair
	for i := range c.Repetitions + 1 {
		var rows [2]TemplateRow
		for k, way := range ways {
			if rows[k], err = c.time(ctx, cluster, traffic, batches, way.submit); err != nil {
				return out, fmt.Errorf("bench template: %s: %w", way.name, err)
			}
			rows[k].Way = way.name
		}
		if i == 0 {
			continue // to warm up
		}
		pairs = append(pairs, pair{rows[0], rows[1]})
		if c.Progress != nil {
			c.Progress(i, c.Repetitions)
		}
	}
	chosen, spread := median(pairs, func(p pair) float64 { return float64(p.plain.Client / p.template.Client) })
	plain, short := chosen.plain, chosen.template
	return TemplateResult{
		Bench: "template", Rows: []TemplateRow{plain, short},
		BytesRatio: (plain.Sent + plain.Received) / (short.Sent + short.Received), ClientRatio: float64(plain.Client / short.Client),
		Tasks: batches * c.Batch * c.TasksPerInstance, TasksPerInstance: c.TasksPerInstance, Batch: c.Batch,
		Repetitions: c.Repetitions, ClientSpread: spread, Version: version.String(), Machine: Machine(),
	}, nil
}

// Run is a submission.
type Run interface {
	Wait(ctx context.Context) error
	Release()
}

// adder is a graph or a template.
type adder interface {
	Add(key string, op millrace.Op, args millrace.Arguments, options ...millrace.TaskOption) millrace.Key
}

// pipeline adds n tasks, each of which needs the one before. The last one is held.
func pipeline(to adder, n int, rate, name any, source millrace.Key) {
	op, last := millrace.Native("core.list"), source
	for i := range n {
		args := millrace.Args(last, "float32", i)
		if i == 0 {
			args = millrace.Args(last, rate).With("name", name)
		}
		var options []millrace.TaskOption
		if i == n-1 {
			options = append(options, millrace.Hold())
		}
		last = to.Add("", op, args, options...)
	}
}

// time measures batches.
func (c *TemplateConfig) time(ctx context.Context, cluster *Cluster, traffic *traffic, batches int, submit func() (Run, error)) (out TemplateRow, err error) {
	n := float64(batches * c.Batch * c.TasksPerInstance)
	runtime.GC()
	scheduler, err := cpuTime(cluster.Scheduler.PID())
	if err != nil {
		return out, err
	}
	sent, received := traffic.sent.Load(), traffic.received.Load()
	spent := time.Duration(0)
	for range batches {
		before, err := ownCPU()
		if err != nil {
			return out, err
		}
		run, err := submit()
		if err != nil {
			return out, err
		}
		after, err := ownCPU()
		if err != nil {
			return out, err
		}
		spent += after - before
		if err := run.Wait(ctx); err != nil {
			return out, err
		}
		run.Release()
	}
	schedulerAfter, err := cpuTime(cluster.Scheduler.PID())
	if err != nil {
		return out, err
	}
	out.Sent, out.Received = float64(traffic.sent.Load()-sent)/n, float64(traffic.received.Load()-received)/n
	out.Client, out.Scheduler = Micros(micros(spent)/n), Micros(micros(schedulerAfter-scheduler)/n)
	return out, nil
}

// traffic counts the bytes of submissions and of their answers.
type traffic struct{ sent, received atomic.Int64 }

type submitting struct{}

// TagRPC implements stats.Handler.
func (t *traffic) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	if strings.Contains(info.FullMethodName, "/Submit") {
		return context.WithValue(ctx, submitting{}, true)
	}
	return ctx
}

// HandleRPC implements stats.Handler.
func (t *traffic) HandleRPC(ctx context.Context, event stats.RPCStats) {
	if ctx.Value(submitting{}) == nil {
		return
	}
	switch event := event.(type) {
	case *stats.OutPayload:
		t.sent.Add(int64(event.WireLength))
	case *stats.InPayload:
		t.received.Add(int64(event.WireLength))
	}
}

// TagConn implements stats.Handler.
func (t *traffic) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (t *traffic) HandleConn(context.Context, stats.ConnStats) {}
