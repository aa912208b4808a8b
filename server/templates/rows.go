package templates

// TemplateChanged is a durable row that was put, or one that is Gone: then only its namespace and
// its hash count. Only those fields of a template are durable that a definition sets: Seal computes
// the others.
type TemplateChanged struct {
	Namespace string
	*Template
	Gone bool
}

// atOnceBytes bounds the templates in a piece of Rows; a single one may be larger.
const atOnceBytes = 1 << 20

// Rows calls put, with a *TemplateChanged, for a piece of the templates, the one that was used
// longest ago first: those from the cursor on. That is 0 for the first piece and then what the call
// before has returned. It returns false after the last piece. Between two pieces the machine may go
// on: templates that are used meanwhile come again, later.
func (m *Machine) Rows(cursor uint64, put func(row any)) (next uint64, more bool) {
	bytes := int64(0)
	for at := m.order.Back(); at != nil; at = at.Prev() {
		e := at.Value.(*entry)
		if e.used < cursor {
			continue
		}
		if bytes > atOnceBytes {
			return cursor, true
		}
		put(&TemplateChanged{Namespace: e.space.name, Template: e.Template})
		bytes += e.Bytes
		cursor = e.used + 1
	}
	return cursor, false
}

// Load keeps a template of an earlier start of the scheduler, or removes it. Nothing follows from
// it: templates beyond the limits go when the next one is put. The machine takes the template,
// which it seals.
func (m *Machine) Load(row TemplateChanged) {
	known := m.find(row.Namespace, row.Hash)
	switch {
	case row.Gone && known != nil:
		m.drop(known)
	case row.Gone:
	case known != nil:
		m.Get(row.Namespace, row.Hash)
	case row.valid():
		row.Seal()
		m.add(row.Namespace, row.Template)
	}
}

// valid reports whether all indices in a template are valid.
func (t *Template) valid() bool {
	for i := range t.Tasks {
		task := &t.Tasks[i]
		if int(task.Op) >= len(t.Ops) || int(task.Options) > len(t.Options) || !t.validPieces(task.Pieces) {
			return false
		}
		for _, in := range task.Inputs {
			if in >= 0 && int(in) >= len(t.Tasks) || in < 0 && int(^in) >= len(t.Inputs) {
				return false
			}
		}
	}
	return len(t.Used) == len(t.Ops)
}

func (t *Template) validPieces(pieces []Piece) bool {
	for i := range pieces {
		p := &pieces[i]
		if len(p.Literal) == 0 && p.Inside == nil && int(p.Hole) >= len(t.Values) || !t.validPieces(p.Inside) {
			return false
		}
	}
	return true
}
