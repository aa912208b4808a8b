package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// newEventsInterval is the interval at which "events -f" looks for new events.
const newEventsInterval = 500 * time.Millisecond

func (a *app) events() *cobra.Command {
	cmd := &cobra.Command{
		Use: "events", Short: "Show what has happened in the cluster", Args: noArgs,
		Long: `Shows the latest events of the cluster, oldest first: workers that joined, left or died, graphs that failed, orders of
operators. The scheduler keeps 2,000 of them. With -f it goes on with new ones. See "millrace get alarms" for trouble that
lasts.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			limit := a.settings.Duration("timeout")
			if a.settings.Bool("follow") {
				limit = 0
			}
			since := a.settings.Duration("since")
			if since < 0 {
				return usageError{fmt.Errorf("--since %v: it must not be negative", since)}
			}
			return a.callFor(cmd.Context(), limit, func(ctx context.Context, _ *millrace.Client, s millracev1.SchedulerServiceClient) error {
				return a.followEvents(ctx, s, newEventsInterval)
			})
		},
	}
	addTimeout(cmd)
	cmd.Flags().BoolP("follow", "f", false, "go on with new events, until interrupted")
	cmd.Flags().StringSlice("worker", nil, "only events about these workers")
	cmd.Flags().Duration("since", 0, "only events within this time; 0: all that are kept")
	cmd.Flags().Bool("json", false, "one JSON object for each event")
	return cmd
}

func (a *app) followEvents(ctx context.Context, s millracev1.SchedulerServiceClient, interval time.Duration) error {
	follow, shown := a.settings.Bool("follow"), eventFilter{workers: a.settings.Strings("worker")}
	if d := a.settings.Duration("since"); d > 0 {
		shown.since = time.Now().Add(-d)
	}
	for after := uint64(0); ; {
		within, cancel := context.WithTimeout(ctx, a.settings.Duration("timeout"))
		out, err := s.ListEvents(within, &millracev1.ListEventsRequest{AfterNumber: after})
		cancel()
		if follow && ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if out.GetLastNumber() < after { // another life of the scheduler
			after = 0
			continue
		}
		after = out.GetLastNumber()
		for _, e := range out.GetEvents() {
			if !shown.has(e) {
				continue
			}
			if err := printEvent(a.out, e, a.settings.Bool("json")); err != nil {
				return err
			}
		}
		if !follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval):
		}
	}
}

// eventFilter selects events.
type eventFilter struct {
	workers []string // empty: all
	since   time.Time
}

func (f *eventFilter) has(e *millracev1.Event) bool {
	if e.GetTime().AsTime().Before(f.since) {
		return false
	}
	for _, name := range f.workers {
		if e.GetWorker() == name {
			return true
		}
	}
	return len(f.workers) == 0
}

func printEvent(w io.Writer, e *millracev1.Event, asJSON bool) error {
	if asJSON {
		text, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(e)
		if err == nil {
			_, err = fmt.Fprintln(w, string(text))
		}
		return err
	}
	about := cmp.Or(e.GetWorker(), "-")
	if e.GetGraphId() != 0 {
		about = fmt.Sprintf("g%d", e.GetGraphId())
	}
	_, err := fmt.Fprintf(w, "%s  %-7s  %-19s  %-12s  %s\n", e.GetTime().AsTime().Local().Format("2006-01-02 15:04:05.000"),
		strings.ToLower(short(e.GetSeverity(), "EVENT_SEVERITY_")), plain(e.GetKind()), plain(about), plain(e.GetText()))
	return err
}
