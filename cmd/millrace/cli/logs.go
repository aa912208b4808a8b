package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// newWorkersInterval is the interval at which "logs -f" looks for workers that have joined.
const newWorkersInterval = 2 * time.Second

func (a *app) logs() *cobra.Command {
	cmd := &cobra.Command{
		Use: "logs", Short: "Show the output of tasks", Args: noArgs,
		Long: `Shows what tasks have written to stdout and stderr, as far as workers keep it: the last 64 KiB of each attempt, and 32 MiB
of each worker. With -f it goes on with the output of running tasks. Each line begins with the key of its task and the
worker, except for the output of one task. A task never waits for this command: if it writes faster than this command
reads, a part of its output is left out, and a line says how much.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			limit := a.settings.Duration("timeout")
			if a.settings.Bool("follow") {
				limit = 0
			}
			return a.callFor(cmd.Context(), limit, func(ctx context.Context, c *millrace.Client, _ millracev1.SchedulerServiceClient) error {
				return a.followLogs(ctx, c)
			})
		},
	}
	addTimeout(cmd)
	cmd.Flags().BoolP("follow", "f", false, "go on with the output of running tasks, until interrupted")
	cmd.Flags().StringSlice("task", nil, "only these tasks: keys, or numbers as in t12")
	cmd.Flags().StringSlice("worker", nil, "only these workers: names, or numbers as in w7")
	cmd.Flags().String("namespace", "", "only tasks of this namespace; empty: all")
	cmd.Flags().Duration("since", 0, "only tasks that have written within this time; 0: all that is kept")
	cmd.Flags().Bool("json", false, "one JSON object for each piece of output")
	return cmd
}

func (a *app) followLogs(ctx context.Context, c *millrace.Client) error {
	request := &millracev1.FollowLogsRequest{Namespace: a.settings.String("namespace"), UntilNow: !a.settings.Bool("follow")}
	within := a.settings.Duration("since")
	if within < 0 {
		return usageError{fmt.Errorf("--since %v: it must not be negative", within)}
	}
	if within == 0 {
		within = 100 * 365 * 24 * time.Hour
	}
	request.Within = durationpb.New(within)
	tasks := a.settings.Strings("task")
	for _, task := range tasks {
		if id, ok := number(task, 't'); ok && task[0] == 't' {
			request.TaskIds = append(request.TaskIds, id)
		}
		request.Keys = append(request.Keys, task)
	}
	p := &logPrinter{to: a.out, json: a.settings.Bool("json"), bare: len(tasks) == 1, begun: make(map[logStream]string)}
	defer p.sweep()
	following := &logFollowing{client: c, request: request, printer: p, names: a.settings.Strings("worker"), known: make(map[uint32]bool), positions: make(map[uint32]uint64)}
	return following.run(ctx)
}

// logFollowing follows the workers of a cluster.
type logFollowing struct {
	client  *millrace.Client
	request *millracev1.FollowLogsRequest
	printer *logPrinter
	names   []string

	streams sync.WaitGroup
	mu      sync.Mutex
	// The following fields are guarded by mu. known are the workers that are followed, positions
	// those in their output up to which it was read, and errs the failures of streams.
	known     map[uint32]bool
	positions map[uint32]uint64
	errs      []error
}

func (f *logFollowing) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer f.streams.Wait()
	defer cancel()
	if err := f.begin(ctx, f.names); err != nil {
		return err
	}
	if f.request.GetUntilNow() {
		f.streams.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		return errors.Join(f.errs...)
	}
	ticks := time.NewTicker(newWorkersInterval)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
			if err := f.begin(ctx, nil); err != nil && ctx.Err() == nil {
				return err
			}
			f.printer.sweep()
		}
	}
}

// begin follows the workers that are not followed yet. Each of those that are required must exist.
func (f *logFollowing) begin(ctx context.Context, required []string) error {
	workers, err := f.client.Workers(ctx)
	if err != nil {
		return err
	}
	missing := make(map[string]bool)
	for _, name := range required {
		missing[name] = true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range workers {
		id := fmt.Sprintf("w%d", w.GetWorkerId())
		delete(missing, w.GetName())
		delete(missing, id)
		if len(f.names) > 0 && !slices.Contains(f.names, w.GetName()) && !slices.Contains(f.names, id) || f.known[w.GetWorkerId()] {
			continue
		}
		f.known[w.GetWorkerId()] = true
		f.streams.Go(func() { f.follow(ctx, w) })
	}
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		return status.Errorf(codes.NotFound, "there is no worker %q: see `millrace get workers`", name)
	}
	return nil
}

func (f *logFollowing) follow(ctx context.Context, w *millracev1.Worker) {
	request := proto.CloneOf(f.request)
	f.mu.Lock()
	request.AfterPosition = f.positions[w.GetWorkerId()]
	f.mu.Unlock()
	err := f.client.FollowLogs(ctx, w, request, func(batch *millracev1.FollowLogsResponse) error {
		f.mu.Lock()
		f.positions[w.GetWorkerId()] = batch.GetPosition()
		f.mu.Unlock()
		return f.printer.print(w.GetName(), batch)
	})
	if err == nil || ctx.Err() != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.errs = append(f.errs, fmt.Errorf("worker %s: %w", w.GetName(), err))
	delete(f.known, w.GetWorkerId()) // it is tried again while it is listed
}

// logStream is one stream of an attempt.
type logStream struct {
	worker string
	task   uint64
	try    uint32
	stderr bool
}

// logPrinter prints output in whole lines. It is safe for concurrent use.
type logPrinter struct {
	to         io.Writer
	json, bare bool

	mu sync.Mutex
	// begun has the beginnings of lines. Guarded by mu.
	begun map[logStream]string
	// prefixes has what precedes these lines. Guarded by mu.
	prefixes map[logStream]string
}

func (p *logPrinter) print(worker string, batch *millracev1.FollowLogsResponse) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range batch.GetOutputs() {
		if p.json {
			if err := p.object(worker, o); err != nil {
				return err
			}
			continue
		}
		prefix := fmt.Sprintf("[%s %s] ", plain(o.GetKey()), plain(worker))
		if p.bare {
			prefix = ""
		}
		stream := logStream{worker, o.GetTaskId(), o.GetAttempt(), o.GetStderr()}
		if n := o.GetSkippedBytes(); n > 0 {
			p.line(prefix, p.begun[stream])
			delete(p.begun, stream)
			p.line(prefix, fmt.Sprintf("[... %s left out ...]", humanize.IBytes(n)))
		}
		lines := strings.Split(p.begun[stream]+o.GetText(), "\n")
		for _, line := range lines[:len(lines)-1] {
			if err := p.whole(prefix, line); err != nil {
				return err
			}
		}
		p.keep(stream, prefix, lines[len(lines)-1])
	}
	return nil
}

// keep stores the beginning of a line. REQUIRES: the lock.
func (p *logPrinter) keep(stream logStream, prefix, text string) {
	const most = 64 << 10
	if len(text) > most {
		p.line(prefix, text)
		text = ""
	}
	if text == "" {
		delete(p.begun, stream)
		delete(p.prefixes, stream)
		return
	}
	if p.prefixes == nil {
		p.prefixes = make(map[logStream]string)
	}
	p.begun[stream], p.prefixes[stream] = text, prefix
}

func (p *logPrinter) object(worker string, o *millracev1.TaskOutput) error {
	return json.NewEncoder(p.to).Encode(map[string]any{
		"worker": worker, "task": fmt.Sprintf("t%d", o.GetTaskId()), "attempt": o.GetAttempt(), "key": o.GetKey(), "namespace": o.GetNamespace(),
		"stderr": o.GetStderr(), "offset": o.GetOffset(), "skipped_bytes": o.GetSkippedBytes(), "text": o.GetText(),
	})
}

// line prints a line unless it is empty; whole prints empty ones, too. REQUIRES: the lock.
func (p *logPrinter) line(prefix, text string) {
	if text != "" {
		_ = p.whole(prefix, text) // the next line of print reports the error
	}
}

func (p *logPrinter) whole(prefix, text string) error {
	text = strings.TrimRight(text, "\r")
	_, err := fmt.Fprintf(p.to, "%s%s\n", prefix, plainLines(text[strings.LastIndexByte(text, '\r')+1:]))
	return err
}

// sweep prints the beginnings of lines, whose ends have not come.
func (p *logPrinter) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for stream, text := range p.begun {
		p.line(p.prefixes[stream], text)
		p.keep(stream, "", "")
	}
}
