package cli

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

// progressEvery is the time between progress lines when the output is not a terminal.
const progressEvery = 5 * time.Second

// progress returns functions for a progress bar on a terminal, and for a line from time to time
// elsewhere.
func (a *app) progress(name string) (tell func(done, of int), stop func()) {
	noted, stop := a.notedProgress(name)
	return func(done, of int) { noted(done, of, "") }, stop
}

// notedProgress is progress with a text about what is left to do.
func (a *app) notedProgress(name string) (tell func(done, of int, note string), stop func()) {
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		began, told := time.Now(), time.Now()
		return func(done, of int, note string) {
			if time.Since(told) > progressEvery {
				told = time.Now()
				fmt.Fprintln(a.err, progressLine(name, done, of, told.Sub(began), note))
			}
		}, func() {}
	}
	return a.bar(name)
}

// bar is notedProgress for a terminal.
func (a *app) bar(name string, options ...mpb.ContainerOption) (tell func(done, of int, note string), stop func()) {
	var last atomic.Value
	last.Store("")
	// NB: with a total above 0, SetTotal would do nothing.
	bars := mpb.New(append(options, mpb.WithOutput(a.err), mpb.WithWidth(48))...)
	bar := bars.AddBar(0, mpb.BarRemoveOnComplete(), mpb.PrependDecorators(decor.Name(name+" ")),
		mpb.AppendDecorators(decor.CountersNoUnit("%d/%d"), decor.Elapsed(decor.ET_STYLE_GO, decor.WCSyncSpace), decor.Any(func(decor.Statistics) string { return last.Load().(string) })))
	return func(done, of int, note string) {
			if note != "" {
				last.Store("  " + note)
			}
			bar.SetTotal(int64(of), false)
			bar.SetCurrent(int64(done))
		}, func() {
			bar.Abort(true)
			bars.Wait()
		}
}

func progressLine(name string, done, of int, after time.Duration, note string) string {
	line := fmt.Sprintf("%s: %d of %d after %.0f s", name, done, of, after.Seconds())
	if note != "" {
		line += ": " + note
	}
	return line
}
