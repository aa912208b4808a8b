package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// getAlarms lists the trouble that lasts.
func (a *app) getAlarms(ctx context.Context, s millracev1.SchedulerServiceClient) error {
	out, err := s.ListAlarms(ctx, &millracev1.ListAlarmsRequest{})
	if err != nil {
		return err
	}
	return a.print(out, func(w io.Writer, _ bool) {
		if len(out.GetAlarms()) == 0 {
			_, _ = fmt.Fprintln(w, "no alarms")
		}
		printAlarms(w, out.GetAlarms())
	})
}

// printAlarms prints a paragraph for each alarm.
func printAlarms(w io.Writer, list []*millracev1.Alarm) {
	for _, x := range list {
		severity := strings.TrimPrefix(x.GetSeverity().String(), "ALARM_SEVERITY_")
		_, _ = fmt.Fprintf(w, "%s for %s: %s\n    remedy: %s\n", severity, age(x.GetStartTime()), plain(x.GetText()), plain(x.GetRemedy()))
	}
}
