package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

func (a *app) drain() *cobra.Command {
	cmd := a.operate(&cobra.Command{
		Use: "drain WORKER...", Short: "Take workers out of use: no new tasks, and others copy the results that they alone have",
		Long: `Takes workers out of use. They get no new tasks and finish those that run, and other workers copy the results that they
alone have. Then they are DRAINED, and can be stopped without a loss; their processes stay. If results cannot be copied, the
workers stay DRAINING, and the output says which results stay, and why. The order also holds for later processes of the same
name, until --undo. A worker is named by its name, or by its number (w7).`,
	}, func(ctx context.Context, s millracev1.SchedulerServiceClient, refs []*millracev1.WorkerRef) ([]*millracev1.Worker, error) {
		out, err := s.DrainWorkers(ctx, &millracev1.DrainWorkersRequest{Workers: refs, Reason: a.settings.String("reason"), Undo: a.settings.Bool("undo")})
		return out.GetWorkers(), err
	})
	cmd.Flags().Bool("undo", false, "put the workers back into use")
	return cmd
}

func (a *app) retire() *cobra.Command {
	cmd := a.operate(&cobra.Command{
		Use: "retire WORKER...", Short: "Drain workers, then end their processes for good",
		Long: `Drains workers as "millrace drain" does, and then ends their processes: their supervisors do not start them again. While
results cannot be copied, the processes go on, unless --within limits that.`,
	}, func(ctx context.Context, s millracev1.SchedulerServiceClient, refs []*millracev1.WorkerRef) ([]*millracev1.Worker, error) {
		out, err := s.RetireWorkers(ctx, &millracev1.RetireWorkersRequest{Workers: refs, Reason: a.settings.String("reason"), Timeout: a.within()})
		return out.GetWorkers(), err
	})
	addWithin(cmd)
	return cmd
}

func (a *app) restart() *cobra.Command {
	cmd := a.operate(&cobra.Command{
		Use: "restart WORKER...", Short: "Drain workers, then let their supervisors start them again; several one after the other",
		Long: `Drains workers as "millrace drain" does, and then ends their processes, so that their supervisors start them again. Several
workers are restarted one after the other: the command waits for each before it goes on with the next. While results cannot be
copied, a process goes on, unless --within limits that.`,
	}, func(ctx context.Context, s millracev1.SchedulerServiceClient, refs []*millracev1.WorkerRef) ([]*millracev1.Worker, error) {
		out, err := s.RestartWorkers(ctx, &millracev1.RestartWorkersRequest{Workers: refs, Reason: a.settings.String("reason"), Timeout: a.within()})
		return out.GetWorkers(), err
	})
	addWithin(cmd)
	return cmd
}

func addWithin(cmd *cobra.Command) {
	cmd.Flags().Duration("within", 0, "end the processes after this time in any case: results that only they have are computed again, or are lost if they were scattered; 0: no limit")
}

func (a *app) within() *durationpb.Duration {
	if d := a.settings.Duration("within"); d != 0 {
		return durationOf(d)
	}
	return nil
}

// order sends one request that drains workers, and returns the workers of the answer.
type order func(context.Context, millracev1.SchedulerServiceClient, []*millracev1.WorkerRef) ([]*millracev1.Worker, error)

// operate completes a command that gives an order to workers. A restart of several workers gives
// the order to one worker at a time, and always waits; the other commands give one order to all.
func (a *app) operate(cmd *cobra.Command, give order) *cobra.Command {
	cmd.Args = atLeast(1)
	rolling := strings.HasPrefix(cmd.Use, "restart")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		wait := (a.settings.Bool("wait") || rolling && len(args) > 1) && !a.settings.Bool("undo")
		limit := a.settings.Duration("timeout")
		if wait && a.settings.origin["timeout"] == "default" {
			limit = 0
		}
		return a.callFor(cmd.Context(), limit, func(ctx context.Context, c *millrace.Client, s millracev1.SchedulerServiceClient) error {
			refs, err := workerRefs(ctx, s, args)
			if err != nil {
				return err
			}
			groups := [][]*millracev1.WorkerRef{refs}
			if rolling {
				if refs, err = refusedFirst(ctx, c, refs); err != nil {
					return err
				}
				groups = slices.Collect(slices.Chunk(refs, 1))
			}
			out, err := a.drained(ctx, c, s, cmd.Name(), wait, groups, give)
			if err != nil {
				return err
			}
			return a.print(out, func(w io.Writer, _ bool) { drainTable(w, out.GetWorkers()) })
		})
	}
	cmd.Flags().String("reason", "", "why, for other people")
	cmd.Flags().Bool("wait", false, "wait for the end of the drain; without --timeout as long as it takes")
	addTimeout(cmd)
	addOutput(cmd)
	return cmd
}

// drained gives an order to each group of workers. With wait it waits for the end of each group's
// drains before it goes on with the next, and shows the progress under a name.
func (a *app) drained(ctx context.Context, c *millrace.Client, s millracev1.SchedulerServiceClient, name string, wait bool, groups [][]*millracev1.WorkerRef, give order) (*millracev1.ListWorkersResponse, error) {
	show, stop := func(int, int, string) {}, func() {}
	if wait {
		show, stop = a.notedProgress(name)
	}
	defer stop()
	all := 0
	for _, group := range groups {
		all += len(group)
	}
	out := new(millracev1.ListWorkersResponse)
	for _, group := range groups {
		workers, err := give(ctx, s, group)
		if err == nil && wait {
			last := len(out.GetWorkers()) + len(workers)
			workers, err = drainedWorkers(ctx, c, s, workers, func(pending []*millracev1.Worker) { show(last-len(pending), all, drainNote(pending)) })
		}
		if err != nil {
			return nil, err
		}
		out.Workers = append(out.Workers, workers...)
	}
	return out, nil
}

// drainNote says what drains wait for.
func drainNote(pending []*millracev1.Worker) string {
	var tasks, copies, bytes, staying uint64
	for _, x := range pending {
		d := x.GetDrain()
		tasks += uint64(x.GetAssignedTasks())
		copies, bytes, staying = copies+d.GetRemainingObjects(), bytes+d.GetRemainingBytes(), staying+d.GetStayingObjects()
	}
	var parts []string
	if tasks > 0 {
		parts = append(parts, several(int(tasks), "task")+" to end")
	}
	if copies > 0 {
		parts = append(parts, fmt.Sprintf("%s (%s) to copy", several(int(copies), "result"), size(bytes)))
	}
	if staying > 0 {
		parts = append(parts, several(int(staying), "result")+" cannot be copied, see `millrace describe worker`")
	}
	if parts == nil {
		return several(len(pending), "worker") + " to end"
	}
	return strings.Join(parts, ", ")
}

// refusedFirst moves the first worker that is not listed, or that has no supervisor, to the front.
// The scheduler refuses to restart such a worker, so the command fails before it restarts another.
func refusedFirst(ctx context.Context, c *millrace.Client, refs []*millracev1.WorkerRef) ([]*millracev1.WorkerRef, error) {
	listed, err := c.Workers(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(refs, func(ref *millracev1.WorkerRef) bool {
		return !slices.ContainsFunc(listed, func(w *millracev1.Worker) bool {
			return (w.GetName() == ref.GetName() || w.GetWorkerId() == ref.GetId()) && w.GetSupervised()
		})
	})
	if i > 0 {
		refs = slices.Concat(refs[i:i+1], refs[:i], refs[i+1:])
	}
	return refs, nil
}

// drainedWorkers waits for the end of drains, and tells of those that have not ended. Then it
// returns the newest process of each worker, by name. The scheduler still knows a process for a
// while after its end.
func drainedWorkers(ctx context.Context, c *millrace.Client, s millracev1.SchedulerServiceClient, workers []*millracev1.Worker, tell func([]*millracev1.Worker)) ([]*millracev1.Worker, error) {
	if err := c.FollowDrains(ctx, tell, workers...); err != nil {
		return nil, err
	}
	var after []*millracev1.Worker
	for _, w := range workers {
		now, err := s.GetWorker(ctx, &millracev1.GetWorkerRequest{Worker: &millracev1.WorkerRef{Worker: &millracev1.WorkerRef_Name{Name: w.GetName()}}})
		if err != nil {
			return nil, err
		}
		after = append(after, now.GetWorker())
	}
	return after, nil
}

// drainTable shows the progress of each worker's drain, and the results that cannot be copied. A
// worker that is away has no figures: what it holds is not known, and zeros would look like an end.
func drainTable(w io.Writer, workers []*millracev1.Worker) {
	row(w, "ID", "NAME", "STATE", "DRAIN", "TASKS", "COPIED", "REMAINING", "STAYING")
	for _, x := range workers {
		d := x.GetDrain()
		id, state := fmt.Sprintf("w%d", x.GetWorkerId()), short(x.GetState(), "WORKER_STATE_")
		if x.GetState() == millracev1.WorkerState_WORKER_STATE_DISCONNECTED {
			row(w, id, x.GetName(), state, drainPurpose(x), "", "", "", "")
			continue
		}
		row(w, id, x.GetName(), state, drainPurpose(x), x.GetAssignedTasks(),
			results(d.GetCopiedObjects(), d.GetCopiedBytes()), results(d.GetRemainingObjects(), d.GetRemainingBytes()), results(d.GetStayingObjects(), d.GetStayingBytes()))
	}
	for _, x := range workers {
		for _, o := range x.GetDrain().GetStaying() {
			row(w)
			row(w, fmt.Sprintf("%s stays on %s: %s", o.GetKey(), x.GetName(), o.GetReason()))
		}
	}
}

// drainPurpose describes the drain of a worker in a few words; a dash if there is none.
func drainPurpose(x *millracev1.Worker) string {
	d := x.GetDrain()
	if d == nil {
		return "-"
	}
	text := strings.ToLower(short(d.GetPurpose(), "DRAIN_PURPOSE_"))
	if d.GetReason() != "" {
		text += ": " + d.GetReason()
	}
	return text
}

// results returns a number of results with their size; a dash if there are none.
func results(n, bytes uint64) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprintf("%d (%s)", n, size(bytes))
}
