package coord_test

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/coord"
)

// TestScripts runs testdata/scripts/*. Each verb prints its effects; after each verb all invariants
// are checked. Run with -rewrite to accept new output.
//
//	ask ticket=1 [client=1 id=a wait=10s keep] with one line:
//	    acquire NAME... [limit=2] [needed=1] | variable NAME | event NAME |
//	    put NAME VALUE [max=2] [hold=7] | take NAME [most=2] | topic NAME [after=1] [later]
//	release client=1 [id=a] names=(x,y) | close-semaphore name=x | semaphore name=x
//	set-variable name=x value=v [hold=7] | delete-variable name=x | set-event|clear-event name=x
//	open-queue client=1 name=q [max=2] | close-queue name=q | leave-queue client=1 name=q |
//	    queue name=q
//	publish name=t values=(a,b) [hold=7] | topics
//	set-metadata path=(a,b) [leaf=v] [names=(x,y)] | metadata [path=(a,b)]
//	withdraw|acknowledge client=1 id=a | hang-up ticket=1 | gone client=1 | pass d=10s
//	restart
//
// Files whose names begin with "durable" also show the rows that change.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		t.Helper()
		config := coord.Config{TopicMessages: 3, Names: 5, Waiting: 3, Durable: strings.HasPrefix(filepath.Base(path), "durable")}
		s := &script{m: coord.New(config), config: config, now: time.Unix(0, 0)}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			s.t, s.d = t, d
			out := s.run()
			if err := s.m.Check(); err != nil {
				d.Fatalf(t, "%v", err)
			}
			return out
		})
	})
}

type script struct {
	m      *coord.Machine
	config coord.Config
	now    time.Time
	t      *testing.T
	d      *datadriven.TestData
	// starts counts the restarts.
	starts uint64
}

// restart gives a new machine the rows of the one before.
func (s *script) restart() []coord.Effect {
	next := coord.New(s.config)
	for cursor, more := uint64(0), true; more; {
		cursor, more = s.m.Rows(cursor, func(row any) {
			for _, c := range row.(*coord.Coordinated).Changes {
				next.Load(c)
			}
		})
	}
	s.m = next
	s.starts++
	return s.m.Loaded(s.now, s.starts*1000, s.starts*1000, nil)
}

func (s *script) text(key string) (v string) { s.d.MaybeScanArgs(s.t, key, &v); return v }
func (s *script) number(key string) (v uint64) {
	s.d.MaybeScanArgs(s.t, key, &v)
	return v
}
func (s *script) client() ids.ClientID { return ids.ClientID(s.number("client")) }

func (s *script) list(key string) []string {
	for _, arg := range s.d.CmdArgs {
		if arg.Key == key {
			return arg.Vals
		}
	}
	return nil
}

func (s *script) duration(key string) time.Duration {
	if !s.d.HasArg(key) {
		return 0
	}
	d, err := time.ParseDuration(s.text(key))
	if err != nil {
		s.d.Fatalf(s.t, "%v", err)
	}
	return d
}

func value(text string, hold uint64) coord.Value {
	v := coord.Value{Data: []byte(text), Hold: hold}
	if hold != 0 {
		v.Keys = []string{"k"}
	}
	return v
}

func (s *script) run() string {
	m, name := s.m, s.text("name")
	switch s.d.Cmd {
	case "ask":
		out, err := m.Ask(s.now, coord.Call{
			Ticket: s.number("ticket"), Client: s.client(), Namespace: "ns", ID: s.text("id"), Wait: s.duration("wait"), Keep: s.d.HasArg("keep"),
			Ask: s.ask(),
		}, nil)
		return show(out, err)
	case "release":
		return show(m.Release(s.now, s.client(), s.text("id"), s.list("names"), nil))
	case "close-semaphore":
		n, out := m.CloseSemaphore(s.now, "ns", name, nil)
		return fmt.Sprintf("%d holders\n%s", n, show(out, nil))
	case "semaphore":
		return fmt.Sprintf("%+v\n", m.Semaphore("ns", name))
	case "set-variable":
		return show(m.SetVariable(s.now, "ns", name, value(s.text("value"), s.number("hold")), nil))
	case "delete-variable":
		return show(m.DeleteVariable(s.now, "ns", name, nil), nil)
	case "set-event":
		return show(m.SetEvent(s.now, "ns", name, nil))
	case "clear-event":
		return show(m.ClearEvent(s.now, "ns", name, nil), nil)
	case "open-queue":
		return show(m.OpenQueue(s.now, s.client(), "ns", name, uint32(s.number("max")), nil))
	case "close-queue":
		n, out := m.CloseQueue(s.now, "ns", name, nil)
		return fmt.Sprintf("%d values\n%s", n, show(out, nil))
	case "leave-queue":
		n, out := m.LeaveQueue(s.now, s.client(), "ns", name, nil)
		return fmt.Sprintf("%d values\n%s", n, show(out, nil))
	case "queue":
		return fmt.Sprintf("%+v\n", m.Queue("ns", name))
	case "publish":
		var values []coord.Value
		for _, text := range s.list("values") {
			values = append(values, value(text, s.number("hold")))
		}
		n, out, err := m.Publish(s.now, "ns", name, values, nil)
		return fmt.Sprintf("last %d\n%s", n, show(out, err))
	case "new-messages":
		return fmt.Sprintf("%+v\n", m.NewMessages(s.client(), s.d.HasArg("again"), nil))
	case "topics":
		return fmt.Sprintf("%+v\n", m.Topics("ns"))
	case "set-metadata":
		var tree *coord.Tree
		if s.d.HasArg("leaf") {
			tree = &coord.Tree{Leaf: []byte(s.text("leaf"))}
		} else if names := s.list("names"); names != nil {
			tree = &coord.Tree{Names: names}
			for _, n := range names {
				tree.Trees = append(tree.Trees, coord.Tree{Leaf: []byte("value of " + n)})
			}
		}
		return show(m.SetMetadata(s.now, "ns", s.list("path"), tree, nil))
	case "metadata":
		tree, found := m.Metadata("ns", s.list("path"))
		return fmt.Sprintf("%t\n%s", found, showTree(tree, ""))
	case "withdraw":
		return show(m.Withdraw(s.now, s.client(), s.text("id"), nil), nil)
	case "acknowledge":
		return show(m.Acknowledge(s.now, s.client(), s.text("id"), nil), nil)
	case "hang-up":
		return show(m.HungUp(s.now, s.number("ticket"), nil), nil)
	case "gone":
		return show(m.ClientGone(s.now, s.client(), nil), nil)
	case "restart":
		return show(s.restart(), nil)
	case "pass":
		s.now = s.now.Add(s.duration("d"))
		return show(m.TimePassed(s.now, nil), nil)
	}
	s.d.Fatalf(s.t, "no verb %s", s.d.Cmd)
	return ""
}

// ask reads the line that says what is asked for.
func (s *script) ask() coord.Ask {
	words := strings.Fields(s.d.Input)
	options, names := map[string]int{}, []string{}
	for _, word := range words[1:] {
		if key, n, ok := strings.Cut(word, "="); ok {
			options[key], _ = strconv.Atoi(n)
		} else {
			names = append(names, word)
		}
	}
	at := func(key string, otherwise int) int {
		if n, ok := options[key]; ok {
			return n
		}
		return otherwise
	}
	switch words[0] {
	case "acquire":
		return coord.Acquire{Names: names, Limit: uint32(at("limit", 1)), Needed: at("needed", len(names))}
	case "variable":
		return coord.ReadVariable{Name: names[0]}
	case "event":
		return coord.AwaitEvent{Name: names[0]}
	case "put":
		return coord.PutInQueue{Name: names[0], Value: value(names[1], uint64(at("hold", 0))), MaxSize: uint32(at("max", 0))}
	case "take":
		return coord.TakeFromQueue{Name: names[0], Most: at("most", 1)}
	case "topic":
		return coord.ReadTopic{Name: names[0], After: uint64(at("after", 0)), Later: len(names) > 1, Most: at("most", 10)}
	}
	s.d.Fatalf(s.t, "nothing is called %s", words[0])
	return nil
}

func show(out []coord.Effect, err *coord.Error) string {
	var b strings.Builder
	for _, effect := range out {
		switch {
		case effect.Kind == coord.EffectUnheld:
			fmt.Fprintf(&b, "unheld %d\n", effect.Hold)
		case effect.Kind == coord.EffectChanged:
			for _, c := range effect.Changes {
				fmt.Fprintf(&b, "%s\n", showChange(c))
			}
		case effect.Err != nil:
			fmt.Fprintf(&b, "%d fails: %s\n", effect.Ticket, effect.Err.Message)
		default:
			fmt.Fprintf(&b, "%d answered: %s\n", effect.Ticket, showAnswer(&effect.Answer))
		}
	}
	if err != nil {
		fmt.Fprintf(&b, "refused: %s\n", err.Message)
	}
	return b.String()
}

func showChange(c coord.Change) string {
	what := strings.TrimPrefix(fmt.Sprintf("%T", c.Row), "coord.")
	if c.Gone {
		return fmt.Sprintf("  gone %s %+v", what, c.Row)
	}
	if row, ok := c.Row.(coord.ValueRow); ok {
		return fmt.Sprintf("  put %s %d %s hold=%d", what, row.Number, row.Value.Data, row.Value.Hold)
	}
	if row, ok := c.Row.(coord.MetadataRow); ok {
		return fmt.Sprintf("  put %s %q %d %q", what, row.Path, row.Number, row.Leaf)
	}
	return fmt.Sprintf("  put %s %+v", what, c.Row)
}

func showAnswer(a *coord.Answer) string {
	words := []string{"not met"}
	if a.Met {
		words[0] = "met"
	}
	words = append(words, a.Names...)
	for _, v := range a.Values {
		words = append(words, string(v.Data))
	}
	for _, m := range a.Messages {
		words = append(words, fmt.Sprintf("%d:%s", m.Number, m.Value.Data))
	}
	if a.Fence > 0 {
		words = append(words, fmt.Sprintf("fence=%d", a.Fence))
	}
	if a.Number > 0 {
		words = append(words, fmt.Sprintf("last=%d missed=%d", a.Number, a.Missed))
	}
	return strings.Join(words, " ")
}

func showTree(t coord.Tree, indent string) string {
	if t.Leaf != nil {
		return indent + string(t.Leaf) + "\n"
	}
	var b strings.Builder
	for i, name := range t.Names {
		b.WriteString(indent + name + ":\n" + showTree(t.Trees[i], indent+"  "))
	}
	return b.String()
}
