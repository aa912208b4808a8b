package ledger

// The inputs of an attempt are pinned in the slab without a reservation if they need at most
// 1/smallShare of it, and if at least 1/spareShare of the slab is available to others: many such
// attempts may wait for a slot while the runs before them wait for room.
const (
	smallShare = 256
	spareShare = 4
)

// The lists of which an attempt needs items are kept in the slab for it if they need at most
// 1/listShare of it.
const listShare = 2

// PinsAtOnce says whether inputs of so many bytes may be pinned without a reservation. Without a
// tier below, nothing can be moved, so that it is always true.
func (l *Ledger) PinsAtOnce(bytes uint64) bool {
	return len(l.tiers) == 1 || bytes <= l.space.Size()/smallShare && l.Available() >= l.space.Size()/spareShare
}

// Spacious says whether objects may be kept in the slab for attempts that could do with copies of
// them, or of parts of them: at least 1/spareShare of the slab is free or can be freed at once.
// Without a tier below, nothing can leave, so that it is always true.
func (l *Ledger) Spacious() bool { return len(l.tiers) == 1 || l.Spare() >= l.space.Size()/spareShare }

// KeepsLists says whether lists of so many bytes together may be kept in the slab for an attempt
// that needs items of them.
func (l *Ledger) KeepsLists(bytes uint64) bool {
	return len(l.tiers) == 1 || bytes <= l.space.Size()/listShare
}
