package sched

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"
)

// options are interned options of tasks. Slot 0 has the defaults and is never freed.
type options struct {
	Options
	tasks uint64
	text  string // canonical form, key of optionIndex
	// body is the canonical form without the priority. A submission may join a task with the same
	// body.
	body string
	// place is the canonical form of the options that restrict placement.
	place string
	rank  uint64 // top bits of the rank
}

// canonical encodes the options so that equal options give equal texts. body is the part without
// the priority, place the part that restricts placement.
func canonical(o *Options) (text, body, place string) {
	var p []byte
	for _, name := range slices.Sorted(maps.Keys(o.Resources)) {
		p = append(p, 'r')
		p = binary.AppendUvarint(p, uint64(len(name)))
		p = append(p, name...)
		p = binary.BigEndian.AppendUint64(p, math.Float64bits(o.Resources[name]))
	}
	for _, s := range o.Workers {
		p = append(p, 'w')
		p = binary.AppendUvarint(p, uint64(s.Worker))
		for _, text := range []string{s.Name, s.Host} {
			p = binary.AppendUvarint(p, uint64(len(text)))
			p = append(p, text...)
		}
	}
	if o.AllowOtherWorkers && len(o.Workers) > 0 {
		p = append(p, 'o')
	}
	if o.NoWait {
		p = append(p, 'n')
	}
	if o.Slots > 1 {
		p = append(p, 's')
		p = binary.AppendUvarint(p, uint64(o.Slots))
	}
	t := slices.Clone(p)
	t = append(t, ' ')
	t = binary.AppendUvarint(t, uint64(o.MaxRetries))
	t = binary.AppendVarint(t, int64(o.RetryBackoff))
	t = binary.AppendVarint(t, int64(o.Timeout))
	t = binary.AppendUvarint(t, o.ExpectedOutputBytes)
	return string(binary.AppendVarint(t, int64(o.Priority))), string(t), string(p)
}

// rankOf returns the top 16 bits of a task's rank, from its priority. Priorities beyond ±32767 are
// clamped.
func rankOf(priority int32) uint64 {
	p := min(max(int64(priority), -32767), 32767)
	return uint64(32767-p) << 48
}

func (m *Machine) internOptions(o Options) uint32 {
	if o.Slots == 1 {
		o.Slots = 0
	}
	text, body, place := canonical(&o)
	if i, ok := m.optionIndex[text]; ok {
		return i
	}
	entry := options{Options: o, text: text, body: body, place: place, rank: rankOf(o.Priority)}
	var i uint32
	if k := len(m.freeOptions); k > 0 {
		i = m.freeOptions[k-1]
		m.freeOptions = m.freeOptions[:k-1]
		m.options[i] = entry
	} else {
		i = uint32(len(m.options))
		m.options = append(m.options, entry)
	}
	m.optionIndex[text] = i
	return i
}

// freeUnusedOptions frees the slot if no task uses it.
func (m *Machine) freeUnusedOptions(i uint32) {
	o := &m.options[i]
	if i == 0 || o.tasks > 0 || m.optionIndex[o.text] != i {
		return
	}
	delete(m.optionIndex, o.text)
	*o = options{}
	m.freeOptions = append(m.freeOptions, i)
}
