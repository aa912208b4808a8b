package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// addWatch adds the flag -w to a command.
func addWatch(cmd *cobra.Command) {
	cmd.Flags().BoolP("watch", "w", false, "show it again and again, until interrupted: on a terminal in place, else below")
	cmd.Flags().Duration("interval", 2*time.Second, "with --watch: time between two looks")
}

// callAgain is call, with --watch again and again.
func (a *app) callAgain(cmd *cobra.Command, f func(context.Context, *millrace.Client, millracev1.SchedulerServiceClient) error) error {
	if !a.settings.Bool("watch") {
		return a.call(cmd, f)
	}
	interval := a.settings.Duration("interval")
	if interval < leastInterval {
		return usageError{fmt.Errorf("--interval %v: at least %v", interval, leastInterval)}
	}
	file, ok := a.out.(*os.File)
	inPlace := ok && term.IsTerminal(int(file.Fd()))
	return a.callFor(cmd.Context(), 0, func(ctx context.Context, c *millrace.Client, s millracev1.SchedulerServiceClient) error {
		return a.again(ctx, interval, inPlace, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, a.settings.Duration("timeout"))
			defer cancel()
			return f(ctx, c, s)
		})
	})
}

// again calls show until ctx ends, and prints what it prints, unless that is the same as before.
func (a *app) again(ctx context.Context, interval time.Duration, inPlace bool, show func(context.Context) error) error {
	out := a.out
	defer func() { a.out = out }()
	for before := ""; ; {
		var b bytes.Buffer
		a.out = &b
		err := show(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if text := b.String(); text != before {
			if err := printAgain(out, text, inPlace, before == ""); err != nil {
				return err
			}
			before = text
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval):
		}
	}
}

// printAgain prints a text below the one before, or in place of all that is on the terminal.
func printAgain(w io.Writer, text string, inPlace, first bool) error {
	const home, endOfLine, endOfScreen = "\x1b[H", "\x1b[K", "\x1b[J"
	switch {
	case inPlace && first:
		text = home + endOfScreen + text
	case inPlace:
		text = home + strings.ReplaceAll(text, "\n", endOfLine+"\n") + endOfScreen
	case !first:
		text = "\n" + text
	}
	_, err := io.WriteString(w, text)
	return err
}
