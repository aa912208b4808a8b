package alloc

// table maps the first granule of each block in use to its node. It uses open addressing with
// linear probing. Deletion moves the following entries up, so that there are no tombstones and
// lookups do not become slower over time.
type table struct {
	slots []slot // a power of two, at most half full
	shift uint8  // 32 - log2(len(slots))
	count int
}

type slot struct {
	start uint32
	node  uint32 // 0 marks an empty slot
}

func (t *table) init(n int) {
	t.slots = make([]slot, n)
	t.shift = 32
	for ; n > 1; n >>= 1 {
		t.shift--
	}
	t.count = 0
}

// home returns the preferred slot of a start. The multiplication spreads the regular distances of
// offsets.
func (t *table) home(start uint32) uint32 { return start * 0x9E3779B1 >> t.shift }

func (t *table) get(start uint32) uint32 {
	mask := uint32(len(t.slots) - 1)
	for i := t.home(start); ; i = (i + 1) & mask {
		s := t.slots[i]
		if s.node == 0 || s.start == start {
			return s.node
		}
	}
}

// put adds a start.
// REQUIRES: the start is not in the table.
func (t *table) put(start, n uint32) {
	if 2*(t.count+1) > len(t.slots) {
		old := t.slots
		t.init(2 * len(old))
		for _, s := range old {
			if s.node != 0 {
				t.put(s.start, s.node)
			}
		}
	}
	mask := uint32(len(t.slots) - 1)
	i := t.home(start)
	for t.slots[i].node != 0 {
		i = (i + 1) & mask
	}
	t.slots[i] = slot{start, n}
	t.count++
}

// remove removes a start.
// REQUIRES: the start is in the table.
func (t *table) remove(start uint32) {
	mask := uint32(len(t.slots) - 1)
	i := t.home(start)
	for t.slots[i].start != start || t.slots[i].node == 0 {
		i = (i + 1) & mask
	}
	t.count--
	for j := (i + 1) & mask; t.slots[j].node != 0; j = (j + 1) & mask {
		// The entry may move to the hole only if its home is not between the hole and the entry.
		if (j-t.home(t.slots[j].start))&mask >= (j-i)&mask {
			t.slots[i] = t.slots[j]
			i = j
		}
	}
	t.slots[i] = slot{}
}
