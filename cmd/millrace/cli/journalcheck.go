package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/server/journal"
)

func (a *app) journalCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "journal", Short: "Check, show and cut the journal of a scheduler",
		Long: `Reads the directory of "millrace scheduler --journal", with or without a scheduler that uses it. "check" says what it has, and
whether it is damaged; "show" prints its records; "cut" makes a damaged one whole, without what is behind the damage. All of them
refuse a journal of another format, and say what to do.`,
	}
	cmd.AddCommand(a.journalCheck(), a.journalShow(), a.journalCut())
	return cmd
}

// oneDirectory completes the name of a directory.
func oneDirectory(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveFilterDirs
}

// damageView is journal.DamageError as JSON.
type damageView struct {
	File   string `json:"file"`
	Offset int64  `json:"offset"`
	Cause  string `json:"cause"`
	Remedy string `json:"remedy"`
}

func viewDamage(d *journal.DamageError, remedy string) *damageView {
	if d == nil {
		return nil
	}
	return &damageView{d.File, d.Offset, d.Cause, cmp.Or(d.Remedy, remedy)}
}

// journalView is what "journal check" says, as JSON.
type journalView struct {
	Directory   string        `json:"directory"`
	Sound       bool          `json:"sound"`
	End         string        `json:"end"`
	Cluster     string        `json:"cluster,omitempty"`
	Starts      int           `json:"starts"`
	Snapshot    *segmentView  `json:"snapshot,omitempty"`
	Segments    []segmentView `json:"segments"`
	Batches     uint64        `json:"batches"`
	Records     int           `json:"records"`
	First       *time.Time    `json:"first_time,omitempty"`
	Last        *time.Time    `json:"last_time,omitempty"`
	Values      int           `json:"values"`
	ValueBytes  uint64        `json:"value_bytes"`
	Damage      *damageView   `json:"damage,omitempty"`
	Torn        *damageView   `json:"torn,omitempty"`
	BehindFiles int           `json:"behind_files,omitempty"`
	BehindBytes uint64        `json:"behind_bytes,omitempty"`
}

type segmentView struct {
	File    string `json:"file"`
	Bytes   int    `json:"bytes"`
	Records int    `json:"records"`
}

const tornRemedy = "none, if the scheduler or its host crashed while it wrote: nobody was told that these bytes are kept, and the next start leaves them out; " +
	"after damage of the disk they are lost, so restore the directory from a copy if there is one"

func (a *app) journalCheck() *cobra.Command {
	cmd := &cobra.Command{
		Use: "check DIR", Short: "Read all of a journal, and say what it has and what is damaged", Args: exactly(1), ValidArgsFunction: oneDirectory,
		Long: `Reads all of a journal, its snapshot and all long values, and changes nothing. It says what is there, where the first damage is, and what
to do. The exit code is 0 only if all is whole. While a scheduler uses the journal, a batch that it is writing is no damage.`,
		RunE: func(_ *cobra.Command, args []string) error {
			files, live, err := readJournal(args[0])
			if err != nil {
				return err
			}
			defer func() { _ = files.Close() }() // It was only read.
			report, err := journal.Examine(files, live, func(journal.Entry) error { return nil })
			if err != nil {
				return err
			}
			view := viewJournal(args[0], live, report)
			if err := printAs(a, func(v *journalView) ([]byte, error) { return json.MarshalIndent(v, "", "  ") }, view, func(w io.Writer, wide bool) { journalTable(w, view, wide) }); err != nil {
				return err
			}
			if len(report.Segments) == 0 && report.Sound() && !live {
				return fmt.Errorf("%s has no journal: no file of it is a segment", args[0])
			}
			return soundness(args[0], report)
		},
	}
	addOutput(cmd)
	return cmd
}

// readJournal opens a directory for reading only.
func readJournal(directory string) (files *journal.Directory, live bool, err error) {
	if err := isDirectory(directory); err != nil {
		return nil, false, err
	}
	return journal.ReadDirectory(directory)
}

func isDirectory(name string) error {
	info, err := os.Stat(name)
	if err == nil && !info.IsDir() {
		err = usageError{fmt.Errorf("%s is a file, and no directory: give the directory of \"millrace scheduler --journal\"", name)}
	}
	return err
}

// soundness returns an error unless a journal is sound.
func soundness(directory string, r *journal.Report) error {
	for _, d := range []*journal.DamageError{r.Damage, r.Torn} {
		if d != nil {
			return fmt.Errorf("the journal in %s is not whole: %s: at byte %d: %s", directory, d.File, d.Offset, d.Cause)
		}
	}
	return nil
}

func viewJournal(directory string, live bool, r *journal.Report) *journalView {
	v := &journalView{
		Directory: directory, Sound: r.Sound(), Starts: r.Starts, Segments: []segmentView{}, Batches: r.Batches, Records: r.Records, Values: r.Values, ValueBytes: r.ValueBytes,
		Damage: viewDamage(r.Damage, journal.DamageRemedy), Torn: viewDamage(r.Torn, tornRemedy), BehindFiles: r.BehindFiles, BehindBytes: r.BehindBytes,
	}
	for _, s := range r.Segments {
		v.Segments = append(v.Segments, segmentView(s))
	}
	if r.Snapshot != nil {
		v.Snapshot = (*segmentView)(r.Snapshot)
	}
	if r.Begun != nil {
		v.Cluster = r.Begun.Cluster
	}
	if !r.First.IsZero() {
		v.First, v.Last = &r.First, &r.Last
	}
	switch {
	case r.Damage != nil:
		v.End = "damaged"
	case live:
		v.End = "in use"
	case r.Torn != nil:
		v.End = "torn"
	case r.Stopped:
		v.End = "stopped"
	case r.WasCut:
		v.End = "cut"
	case len(r.Segments) == 0 && r.Snapshot == nil:
		v.End = "empty"
	default:
		v.End = "crashed"
	}
	return v
}

// ends says what the ends of journals mean.
var ends = map[string]string{
	"damaged": "behind the damage nothing was read",
	"in use":  "a scheduler is writing it",
	"torn":    "no whole batch is at the end, and the scheduler did not stop in good order",
	"stopped": "the scheduler stopped in good order",
	"cut":     "\"millrace journal cut\" has removed what was behind it, and no scheduler has written since",
	"empty":   "there is no segment: a scheduler would begin a new cluster",
	"crashed": "the scheduler did not stop in good order, and all is whole",
}

func journalTable(w io.Writer, v *journalView, wide bool) {
	total := 0
	for _, s := range v.Segments {
		total += s.Bytes
	}
	if v.Cluster != "" {
		row(w, "cluster", v.Cluster)
	}
	row(w, "starts", v.Starts)
	if s := v.Snapshot; s != nil {
		row(w, "snapshot", fmt.Sprintf("%s, %s, %d rows, in place of the older log", s.File, size(uint64(s.Bytes)), s.Records))
	}
	row(w, "segments", fmt.Sprintf("%d, %s", len(v.Segments), size(uint64(total))))
	if wide {
		for _, s := range v.Segments {
			row(w, "", fmt.Sprintf("%s, %s, %d records", s.File, size(uint64(s.Bytes)), s.Records))
		}
	}
	records := fmt.Sprintf("%d in %d batches", v.Records, v.Batches)
	if v.First != nil && v.Records > 0 {
		records += fmt.Sprintf(", from %s to %s", v.First.Format(time.RFC3339), v.Last.Format(time.RFC3339))
	}
	row(w, "records", records)
	row(w, "long values", fmt.Sprintf("%d, %s", v.Values, size(v.ValueBytes)))
	row(w, "end", v.End+": "+ends[v.End])
	for name, d := range map[string]*damageView{"damage": v.Damage, "torn": v.Torn} { // order-free: one is there at most
		if d == nil {
			continue
		}
		row(w, name, fmt.Sprintf("%s, byte %d: %s", d.File, d.Offset, d.Cause))
		row(w, "behind it", fmt.Sprintf("%s in %d files", size(v.BehindBytes), v.BehindFiles))
		row(w, "remedy", d.Remedy)
	}
}

func (a *app) journalCut() *cobra.Command {
	cmd := &cobra.Command{
		Use: "cut DIR --yes", Short: "Remove what is behind the first damage of a journal", Args: exactly(1), ValidArgsFunction: oneDirectory,
		Long: `Removes what is behind the first damage of a journal, or behind a torn end, so that a scheduler starts from what is before it.
What was accepted after that is given up: results that workers hold for it are deleted, and clients get errors. Each file that
is changed or removed is kept beside the journal's files, with a name that ends in ".cut". It refuses while a scheduler uses the
journal. Without --yes it only says what it would do.`,
		RunE: func(_ *cobra.Command, args []string) error {
			if err := isDirectory(args[0]); err != nil {
				return err
			}
			files, err := journal.OpenDirectory(args[0])
			if err != nil {
				return err
			}
			defer func() { _ = files.Close() }() // All that was written is durable.
			report, err := journal.Examine(files, false, func(journal.Entry) error { return nil })
			if err != nil {
				return err
			}
			if report.Sound() {
				_, err := fmt.Fprintln(a.out, "nothing is damaged")
				return err
			}
			if !a.settings.Bool("yes") {
				return usageError{fmt.Errorf("%w: --yes would keep %d records, and remove %s in %d files behind them", soundness(args[0], report), report.Records, size(report.BehindBytes), report.BehindFiles)}
			}
			copies, err := journal.Cut(files, "."+time.Now().UTC().Format("20060102T150405Z")+".cut")
			for _, name := range copies {
				row(a.out, "kept a copy: "+name)
			}
			if errors.Is(err, journal.ErrNothingWhole) || errors.Is(err, journal.ErrSnapshotNeeds) {
				return err
			}
			if err != nil {
				return errors.Join(err, errors.New("the journal is as damaged as before: free space on the disk, and try again"))
			}
			row(a.out, fmt.Sprintf("the journal is whole, with %d records until %s", report.Records, report.Last.Format(time.RFC3339)))
			return nil
		},
	}
	cmd.Flags().Bool("yes", false, "really remove it")
	return cmd
}
