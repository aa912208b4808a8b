package copies

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/internal/ids"
)

// checker collects the invariants that are broken.
type checker struct {
	m        *Machine
	problems []error
}

func (k *checker) fail(format string, args ...any) {
	if len(k.problems) < 10 {
		k.problems = append(k.problems, fmt.Errorf("copies: "+format, args...))
	}
}

// Check returns an error if an invariant is broken. It may be called when the owner has recorded an
// event with all its consequences.
func (m *Machine) Check() error {
	k := &checker{m: m}
	k.rescues()
	return errors.Join(k.problems...)
}

// rescues checks the state of rescues.
func (k *checker) rescues() {
	m := k.m
	left := make(map[ids.WorkerID]int)
	bytes := make(map[ids.WorkerID][]uint64)
	for _, id := range sortedKeys(m.rescuing) {
		s := m.rescuing[id]
		o, _ := m.tables.Object(id)
		r := m.rescues[s.dead]
		if o.State != ObjectRescuing || r == nil || s.tried&(1<<s.by) == 0 || s.bytes != o.Bytes {
			k.fail("%s is rescued from %s and is not RESCUING", id, s.dead)
			continue
		}
		left[s.dead]++
		if bytes[s.dead] == nil {
			bytes[s.dead] = make([]uint64, len(r.survivors))
		}
		bytes[s.dead][s.by] += s.bytes + rescueOverhead
	}
	for _, dead := range sortedKeys(m.rescues) {
		r := m.rescues[dead]
		if _, alive := m.tables.Worker(dead); alive || r.left == 0 || r.left != left[dead] {
			k.fail("%d objects of %s are to be rescued, not %d", left[dead], dead, r.left)
			continue
		}
		for i, s := range r.survivors {
			if s.bytes != bytes[dead][i] {
				k.fail("%s is to copy %d bytes of %s, not %d", s.worker, bytes[dead][i], dead, s.bytes)
			}
		}
	}
}
