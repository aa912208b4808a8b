package sched

import (
	"github.com/cespare/xxhash/v2"

	"github.com/millrace/millrace/internal/ids"
)

// keyIndex finds the task of a key within one namespace. A slot has 8 bytes: 48 bits of task id and
// 16 bits of the hash (the tag). The key itself is compared in the task's block. The top bits of
// the hash select a segment, so that growing one segment rehashes only a small part of the table.
type keyIndex struct {
	segments [keySegments]keySegment
	count    int
}

const (
	keySegments = 512
	keySegShift = 64 - 9
	keyTagShift = 48
	tombstone   = maxTaskID // an id that is never handed out
)

// fewSlots is the largest number of slots for which a segment places keys by the hash bits in the
// slots. Such a segment can be resized without reading the tasks, and five bits of the tag are left
// to tell keys apart. Larger segments place keys by other bits of the hash.
const fewSlots = 1 << 11

// placeOf is the index at which the search for a key begins in a segment with so many slots.
func placeOf(hash uint64, slots int) uint64 {
	if slots > fewSlots {
		hash >>= 16
	}
	return hash & uint64(slots-1)
}

// keySegment is an open-addressed table with linear probing; 0 is an empty slot.
type keySegment struct {
	slots []uint64
	// used counts live slots and tombstones; live counts live slots only.
	used, live int
}

func hashKey(key string) uint64      { return xxhash.Sum64String(key) }
func hashKeyBytes(key []byte) uint64 { return xxhash.Sum64(key) }

// find returns the task of the key, or 0.
func (x *keyIndex) find(m *Machine, key string, hash uint64) ids.TaskID {
	s := &x.segments[hash>>keySegShift]
	if s.live == 0 {
		return 0
	}
	mask := uint64(len(s.slots) - 1)
	tag := hash & 0xffff
	for i := placeOf(hash, len(s.slots)); ; i = (i + 1) & mask {
		v := s.slots[i]
		if v == 0 {
			return 0
		}
		if v>>keyTagShift != tag || v&maxTaskID == tombstone {
			continue
		}
		id := ids.TaskID(v & maxTaskID)
		b, t := m.at(id)
		if string(b.keyOf(t)) == key {
			return id
		}
	}
}

// insert adds a key. REQUIRES: the key is not in the index.
func (x *keyIndex) insert(m *Machine, hash uint64, id ids.TaskID) {
	s := &x.segments[hash>>keySegShift]
	if (s.used+1)*4 > len(s.slots)*3 {
		s.resize(m)
	}
	mask := uint64(len(s.slots) - 1)
	i := placeOf(hash, len(s.slots))
	for s.slots[i] != 0 {
		i = (i + 1) & mask
	}
	s.slots[i] = hash&0xffff<<keyTagShift | uint64(id)
	s.used++
	s.live++
	x.count++
}

// remove removes the key of the task. REQUIRES: the key is in the index, and the task's record
// still has it.
func (x *keyIndex) remove(m *Machine, hash uint64, id ids.TaskID) {
	s := &x.segments[hash>>keySegShift]
	mask := uint64(len(s.slots) - 1)
	want := hash&0xffff<<keyTagShift | uint64(id)
	i := placeOf(hash, len(s.slots))
	for s.slots[i] != want {
		i = (i + 1) & mask
	}
	if s.slots[(i+1)&mask] == 0 {
		// The next slot is empty, so no search continues past this slot. Clear it, and the
		// tombstones right before it.
		for s.slots[i] == want || s.slots[i]&maxTaskID == tombstone {
			s.slots[i] = 0
			s.used--
			want = tombstone
			i = (i - 1) & mask
		}
	} else {
		s.slots[i] = tombstone
	}
	s.live--
	x.count--
	switch {
	case s.live == 0:
		*s = keySegment{}
	case len(s.slots) > 16 && s.live*8 < len(s.slots):
		s.resize(m)
	}
}

// resize makes room for one more key, and drops tombstones and unused capacity.
func (s *keySegment) resize(m *Machine) {
	size := 8
	for size*3 < (s.live+1)*5 {
		size *= 2
	}
	old := s.slots
	s.slots = make([]uint64, size)
	s.used = s.live
	mask := uint64(size - 1)
	for _, v := range old {
		if v == 0 || v&maxTaskID == tombstone {
			continue
		}
		hash := v >> keyTagShift
		if size > fewSlots {
			b, t := m.at(ids.TaskID(v & maxTaskID))
			hash = hashKeyBytes(b.keyOf(t))
		}
		i := placeOf(hash, size)
		for s.slots[i] != 0 {
			i = (i + 1) & mask
		}
		s.slots[i] = v
	}
}
