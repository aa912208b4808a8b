package templates_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/templates"
)

func unsealed(hash byte, bytes int) *templates.Template {
	return &templates.Template{
		Hash: templates.Hash{hash}, Ops: make([]sched.OpSpec, 1), Used: []bool{true},
		Tasks: []templates.Task{{Key: "k", Arguments: make([]byte, bytes)}},
	}
}

func sealed(hash byte, bytes int) *templates.Template {
	t := unsealed(hash, bytes)
	t.Seal()
	return t
}

// TestTheTemplatesThatWereUsedLastAreKept compares the machine with a list of all uses.
func TestTheTemplatesThatWereUsedLastAreKept(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		limits := templates.Limits{Templates: 4, Bytes: 3000, AllBytes: 6000}
		m := templates.New(limits)
		// Each change is a row. A table of the rows is the same as the machine, also if it begins
		// with pieces of Rows, between which the machine goes on.
		logged, pieced := templates.New(limits), templates.New(limits)
		var rows []*templates.TemplateChanged
		cursor, more := uint64(0), true
		type name struct {
			space string
			hash  byte
		}
		var uses []name // the latest one last
		sizes := map[name]int64{}
		kept := func() []name {
			var kept []name
			all, own, count := int64(0), map[string]int64{}, map[string]int{}
			full := map[string]bool{}
			for i := len(uses) - 1; i >= 0; i-- {
				n := uses[i]
				own[n.space] += sizes[n]
				count[n.space]++
				full[n.space] = full[n.space] || own[n.space] > limits.Bytes || count[n.space] > limits.Templates
				if full[n.space] {
					continue
				}
				if all += sizes[n]; all > limits.AllBytes {
					break
				}
				kept = append(kept, n)
			}
			return kept
		}
		for step := range 300 {
			n := name{fmt.Sprint("n", r.IntN(3)), byte(r.IntN(12))}
			known := m.Get(n.space, templates.Hash{n.hash}) != nil
			if want := slices.Contains(kept(), n); known != want {
				t.Fatalf("seed %d, step %d: %v is known: %v, want %v", seed, step, n, known, want)
			}
			uses = slices.DeleteFunc(uses, func(u name) bool { return u == n && known })
			if !known {
				made := sealed(n.hash, r.IntN(1200))
				got, changed := m.Put(n.space, made)
				again, none := m.Put(n.space, sealed(n.hash, 1))
				if got != made || again != made || len(none) > 0 {
					t.Fatalf("seed %d, step %d: Put returns another template", seed, step)
				}
				rows = append(rows, changed...)
				uses = slices.DeleteFunc(uses, func(u name) bool { return u == n })
				sizes[n] = made.Bytes
			}
			uses = append(uses, n)
			uses = slices.DeleteFunc(uses, func(u name) bool { return !slices.Contains(kept(), u) })
			if m.Len() != len(uses) {
				t.Fatalf("seed %d, step %d: %d templates are kept, want %d", seed, step, m.Len(), len(uses))
			}
			if err := m.Check(); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			if step < 150 {
				continue
			}
			if step == 150 {
				for _, row := range rows {
					logged.Load(copyOf(row))
				}
				rows = nil
			}
			if more && step%10 == 0 {
				cursor, more = m.Rows(cursor, func(row any) { pieced.Load(copyOf(row.(*templates.TemplateChanged))) })
			}
		}
		if more {
			t.Fatalf("seed %d: the rows have no end", seed)
		}
		for _, row := range rows {
			logged.Load(copyOf(row))
			pieced.Load(copyOf(row))
		}
		for _, table := range []*templates.Machine{logged, pieced} {
			if table.Len() != m.Len() || table.Bytes() != m.Bytes() {
				t.Fatalf("seed %d: the rows have %d templates of %d bytes, the machine %d of %d", seed, table.Len(), table.Bytes(), m.Len(), m.Bytes())
			}
			for _, n := range uses {
				if table.Get(n.space, templates.Hash{n.hash}) == nil {
					t.Fatalf("seed %d: %v is not in the rows", seed, n)
				}
			}
			if err := table.Check(); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	}
}

// copyOf returns a row as the journal reads it.
func copyOf(row *templates.TemplateChanged) templates.TemplateChanged {
	t := &templates.Template{Hash: row.Hash, Ops: row.Ops, Used: row.Used, Tasks: row.Tasks}
	return templates.TemplateChanged{Namespace: row.Namespace, Template: t, Gone: row.Gone}
}

// Templates beyond the limits, which another start had, go when the next one is put. A template
// with an index of nothing is not loaded.
func TestLoadedTemplatesDecideNothing(t *testing.T) {
	m := templates.New(templates.Limits{Templates: 2, Bytes: 3000, AllBytes: 6000})
	for hash := range byte(4) {
		m.Load(templates.TemplateChanged{Namespace: "n", Template: unsealed(hash, 1000)})
	}
	if m.Len() != 4 {
		t.Errorf("%d templates are loaded", m.Len())
	}
	for _, bad := range []func(*templates.Template){
		func(t *templates.Template) { t.Tasks[0].Op = 1 },
		func(t *templates.Template) { t.Tasks[0].Options = 1 },
		func(t *templates.Template) { t.Tasks[0].Inputs = []templates.Input{1} },
		func(t *templates.Template) { t.Tasks[0].Inputs = []templates.Input{templates.Hole(0)} },
		func(t *templates.Template) {
			t.Tasks[0].Pieces = []templates.Piece{{Inside: []templates.Piece{{Hole: 0}}}}
		},
	} {
		wrong := unsealed(9, 1)
		bad(wrong)
		m.Load(templates.TemplateChanged{Namespace: "n", Template: wrong})
	}
	if m.Get("n", templates.Hash{9}) != nil {
		t.Error("a template with wrong indices is loaded")
	}
	if _, changed := m.Put("n", sealed(5, 1000)); len(changed) != 4 || m.Len() != 2 || m.Get("n", templates.Hash{3}) == nil {
		t.Errorf("after another one, %d templates are left: %+v", m.Len(), changed)
	}
}

func TestInstancesShareWhatIsConstant(t *testing.T) {
	constant := bytes.Repeat([]byte("c"), 1000)
	template := &templates.Template{
		Values: []templates.Value{{Name: "x"}}, Inputs: []string{"in"},
		Tasks: []templates.Task{
			{Key: "a", Arguments: constant, Inputs: []templates.Input{templates.Hole(0)}},
			{Key: "b", Inputs: []templates.Input{0, templates.Hole(0)}, Hold: true, Options: 1,
				Pieces: []templates.Piece{{Literal: []byte("<")}, {Inside: []templates.Piece{{Hole: 0}, {Literal: []byte(";")}}}}},
		},
	}
	template.Seal()
	value := bytes.Repeat([]byte("v"), 200)
	in := &templates.Instance{Prefix: "p-", Key: "0-", Values: [][]byte{value}, Inputs: []string{"outside"}}
	expansion := templates.Expansion{}
	tasks := expansion.Append(nil, template, in, 3, 7)
	tasks = expansion.Append(tasks, template, &templates.Instance{Key: "q-", Values: [][]byte{nil}, Inputs: []string{"other"}}, 3, 7)
	if len(tasks) != 4 || tasks[0].Key != "p-0-a" || tasks[1].Key != "p-0-b" || tasks[2].Key != "q-a" || tasks[3].Key != "q-b" {
		t.Fatalf("tasks: %+v", tasks)
	}
	if &tasks[0].Arguments[0] != &constant[0] || &tasks[2].Arguments[0] != &constant[0] {
		t.Error("the instances have copies of the arguments")
	}
	// The lengths are varints: 200 and 203 take two bytes.
	want := append([]byte("<\xcb\x01\xc8\x01"), append(slices.Clone(value), ';')...)
	if !bytes.Equal(tasks[1].Arguments, want) || string(tasks[3].Arguments) != "<\x02\x00;" {
		t.Errorf("arguments %q and %q", tasks[1].Arguments, tasks[3].Arguments)
	}
	if !slices.Equal(tasks[1].Inputs, []string{"p-0-a", "outside"}) || !slices.Equal(tasks[2].Inputs, []string{"other"}) {
		t.Errorf("inputs %q and %q", tasks[1].Inputs, tasks[2].Inputs)
	}
	if tasks[0].Op != 3 || tasks[0].Options != 0 || tasks[1].Options != 8 || !tasks[1].Hold || !slices.Equal(template.Held(), []int{1}) {
		t.Errorf("tasks: %+v", tasks)
	}
	size := int64(0)
	for i, task := range tasks[:2] {
		size += int64(templates.TaskBytes + len(task.Key))
		for _, key := range task.Inputs {
			size += int64(templates.InputBytes + len(key))
		}
		if i == 0 {
			size += int64(len(task.Arguments))
		}
	}
	if got := template.BytesOf(in); got < size+200 || got > size+600 {
		t.Errorf("an instance counts %d bytes, its tasks have about %d", got, size+200)
	}
	if in := template.Values[0]; in.Task != "b" {
		t.Errorf("the hole is of task %q", in.Task)
	}
}
