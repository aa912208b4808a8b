package worker

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/session"
)

// processes are those of executors; see executor.Pools.
type processes interface {
	WantPlugins([]executor.Plugin)
	ApplyPlugins(context.Context) map[uint64][]executor.Returned
}

// pluginFollower gives the executors the plugins of the cluster.
type pluginFollower struct {
	worker    string
	scheduler grpc.ClientConnInterface
	pools     processes
	log       *slog.Logger
	// known: the executors have a list.
	known bool
}

// run follows the plugins until the context ends. While the scheduler is away, the executors keep
// the plugins that they have.
func (f *pluginFollower) run(ctx context.Context) {
	pause := reconnect.BaseDelay
	for {
		began := time.Now()
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if code := status.Code(err); !f.known && code != codes.Unavailable && !errors.Is(err, io.EOF) {
			// Without a list, no process would take a run.
			level := slog.LevelWarn
			if code == codes.Unimplemented {
				level = slog.LevelInfo // the scheduler has no plugins
			}
			f.log.Log(ctx, level, "the plugins of the cluster are unknown; processes go on without them", "error", err)
			f.known = true
			f.pools.WantPlugins(nil)
			f.pools.ApplyPlugins(ctx)
			pause = reconnect.MaxDelay
		} else if time.Since(began) > reconnect.MaxDelay {
			pause = reconnect.BaseDelay
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		pause = min(2*pause, reconnect.MaxDelay)
	}
}

// follow follows the plugins until the stream ends. A list may come while an earlier one is carried
// out: it ends setups of plugins that it does not have.
func (f *pluginFollower) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := workerv1.NewPluginOrderServiceClient(f.scheduler).FollowPlugins(ctx, grpc.MaxCallRecvMsgSize(session.MaxMessageBytes), grpc.MaxCallSendMsgSize(session.MaxMessageBytes))
	if err != nil {
		cancel()
		return err
	}
	if err := stream.Send(&workerv1.FollowPluginsRequest{Worker: f.worker}); err != nil {
		cancel()
		_, err = stream.Recv()
		return err
	}
	// ordered has the revision of the last list that is not carried out yet.
	ordered := make(chan uint64, 1)
	var carrying sync.WaitGroup
	carrying.Go(func() {
		for {
			select {
			case revision := <-ordered:
				if err := stream.Send(f.report(revision, f.pools.ApplyPlugins(ctx))); err != nil {
					return // Recv tells why
				}
			case <-ctx.Done():
				return
			}
		}
	})
	defer carrying.Wait()
	defer cancel()
	known := make(map[uint64]executor.Plugin)
	var list []executor.Plugin
	for {
		order, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, p := range order.GetPlugins() {
			plugin, seen := known[p.GetVersion()]
			if !seen {
				// A plugin that no executor can call was checked by the scheduler as far as it can.
				if plugin, err = executor.PluginFrom(p); err != nil {
					f.log.Error("a plugin cannot be used", "error", err)
				}
			}
			list = append(list, plugin)
		}
		if order.GetMore() {
			continue
		}
		clear(known)
		for _, p := range list {
			known[p.Version] = p
		}
		f.known = true
		f.pools.WantPlugins(list)
		list = nil
		select {
		case <-ordered: // the list before is carried out with this one
		default:
		}
		ordered <- order.GetRevision()
	}
}

func (f *pluginFollower) report(revision uint64, failures map[uint64][]executor.Returned) *workerv1.FollowPluginsRequest {
	out := &workerv1.FollowPluginsRequest{Revision: revision}
	for _, version := range slices.Sorted(maps.Keys(failures)) {
		outcome := &millracev1.PluginOutcome{Worker: f.worker}
		for _, r := range failures[version] {
			outcome.Failures = append(outcome.Failures, executor.ResultTo(r, f.worker))
		}
		out.Failures = append(out.Failures, &workerv1.FailedPlugin{Version: version, Outcome: outcome})
	}
	return out
}
