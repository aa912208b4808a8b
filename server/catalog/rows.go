package catalog

import (
	"encoding/binary"
	"fmt"

	"github.com/millrace/millrace/server/schedapi"
)

// tombstone records the removal of a row, so that watchers can resume past it.
type tombstone struct {
	table     string
	number    uint64
	name      string
	namespace string
	revision  uint64
	// order makes the key unique within one revision.
	order uint32
}

// head is the only row of its table. It makes the revision part of every snapshot.
type head struct {
	revision uint64
	// floor is the oldest revision that a watcher can resume after: every later removal still has
	// its tombstone.
	floor uint64
}

func number(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// text joins parts to a key. Each part ends with a zero byte, so that no key is a prefix of
// another.
func text(parts ...string) []byte {
	var key []byte
	for _, part := range parts {
		key = append(append(key, part...), 0)
	}
	return key
}

// keyOf returns the key of a row in its table, and the revision of its last change.
func keyOf(row any) (key []byte, revision uint64) {
	switch r := row.(type) {
	case *schedapi.Graph:
		return number(uint64(r.ID)), r.Revision
	case *schedapi.Worker:
		return number(uint64(r.ID)), r.Revision
	case *schedapi.Client:
		return number(uint64(r.ID)), r.Revision
	case *schedapi.Dataset:
		return text(r.Namespace, r.Name), r.Revision
	case *head:
		return number(0), r.revision
	case *tombstone:
		return binary.BigEndian.AppendUint32(number(r.revision), r.order), r.revision
	default:
		panic(fmt.Sprintf("catalog: there is no table for %T", row))
	}
}
