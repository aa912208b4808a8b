package tables

import (
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
)

// SameType says whether the values of two fields are of one type. Types that Arrow's library does
// not know are read as those of their buffers: metadata tell them apart. If some of these differ,
// it returns the name of the first one. The names of the elements of lists and maps are of no
// account.
func SameType(a, b arrow.Field) (same bool, tag string) {
	if !alike(a.Type, b.Type) {
		return false, ""
	}
	_, known := a.Type.(arrow.ExtensionType)
	for _, tag := range []string{"ARROW:extension:name", "ARROW:extension:metadata", "_PL_ENUM_VALUES", "_PL_ENUM_VALUES2"} {
		one, has := a.Metadata.GetValue(tag)
		two, too := b.Metadata.GetValue(tag)
		if !known && (one != two || has != too) {
			return false, tag
		}
	}
	ours, theirs := fieldsIn(a.Type), fieldsIn(b.Type)
	if len(ours) != len(theirs) {
		return false, ""
	}
	for i := range ours {
		if ours[i].Nullable != theirs[i].Nullable {
			return false, ""
		}
		if same, tag := SameType(ours[i], theirs[i]); !same {
			return false, tag
		}
	}
	return true, ""
}

// fieldsIn returns the fields inside of a type.
func fieldsIn(t arrow.DataType) []arrow.Field {
	switch t := t.(type) {
	case *arrow.DictionaryType:
		return []arrow.Field{{Type: t.ValueType}}
	case *arrow.MapType:
		return []arrow.Field{t.KeyField(), t.ItemField()}
	case arrow.NestedType:
		return t.Fields()
	}
	return nil
}

// alike says whether two types are the same, apart from the types inside of them.
func alike(a, b arrow.DataType) bool {
	if a.ID() != b.ID() {
		return false
	}
	switch a := a.(type) {
	case *arrow.DictionaryType:
		b := b.(*arrow.DictionaryType)
		return arrow.TypeEqual(a.IndexType, b.IndexType) && a.Ordered == b.Ordered
	case *arrow.FixedSizeListType:
		return a.Len() == b.(*arrow.FixedSizeListType).Len()
	case *arrow.MapType:
		return a.KeysSorted == b.(*arrow.MapType).KeysSorted
	case *arrow.StructType:
		return slices.EqualFunc(a.Fields(), b.(*arrow.StructType).Fields(), sameName)
	case arrow.UnionType:
		b := b.(arrow.UnionType)
		return a.Mode() == b.Mode() && slices.Equal(a.TypeCodes(), b.TypeCodes()) && slices.EqualFunc(a.Fields(), b.Fields(), sameName)
	case arrow.NestedType:
		return true
	}
	return arrow.TypeEqual(a, b)
}

func sameName(a, b arrow.Field) bool { return a.Name == b.Name }
