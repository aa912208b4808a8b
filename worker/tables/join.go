package tables

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
)

// The kinds of Join.
const (
	Inner = "inner"
	Left  = "left"
	Semi  = "semi"
	Anti  = "anti"
)

// Join returns the rows of two tables that belong together: those whose values are equal in the
// columns on, in the order of left, and for each row of it in that of right. Of a Left join a row
// without a partner has None. Semi and Anti joins have rows of left only: those with a partner and
// those without one. A null has no partner, unless nulls. Errors name the column.
func (c *Call) Join(left, right arrow.RecordBatch, leftOn, rightOn []int, how string, nulls bool) (leftRows, rightRows []uint32, err error) {
	if err := Check(left.NumRows() + right.NumRows()); err != nil {
		return nil, nil, fmt.Errorf("the tables together: %w", err)
	}
	columns := make([][]*keys, len(leftOn))
	for i := range leftOn {
		if columns[i], err = c.partners(left, right, leftOn[i], rightOn[i]); err != nil {
			return nil, nil, err
		}
	}
	numbers, count, err := c.numberRows(columns, nulls)
	if err != nil {
		return nil, nil, err
	}
	m := &matches{Call: c, left: numbers[1]}
	if err := m.list(numbers[0], count); err != nil {
		return nil, nil, err
	}
	if how == Semi || how == Anti {
		rows, err := m.only(how == Semi)
		return rows, nil, err
	}
	return m.pairs(how == Left)
}

// partners returns the values of a column of the right and of the left table.
func (c *Call) partners(left, right arrow.RecordBatch, leftAt, rightAt int) ([]*keys, error) {
	name := left.ColumnName(leftAt)
	r, err := c.keysOf(right.Column(rightAt), "joined")
	if err != nil {
		return nil, fmt.Errorf("column %q of the right table: %w", right.ColumnName(rightAt), err)
	}
	l, err := c.keysOf(left.Column(leftAt), "joined")
	if err != nil {
		return nil, fmt.Errorf("column %q of the left table: %w", name, err)
	}
	if l.kind != r.kind && l.kind != "" && r.kind != "" {
		return nil, fmt.Errorf("column %q is of type %s in the left table and of type %s in the right one, which do not compare: cast one of them",
			name, left.Column(leftAt).DataType(), right.Column(rightAt).DataType())
	}
	return []*keys{r, l}, nil
}

// matches are the rows of the right table by number.
type matches struct {
	*Call
	left  []uint32 // the numbers of the rows of the left table
	ends  []uint32 // the rows of number n are those from ends[n] to ends[n+1]
	right []uint32
}

// list lists the rows of the right table by their numbers.
func (m *matches) list(numbers []uint32, count uint32) error {
	m.ends, m.right = Room[uint32](m.Call, int(count)+2), Room[uint32](m.Call, len(numbers))
	// After the second pass, ends[n+1] is the end of the rows of n, and those of n+1 begin there.
	counts := m.ends[2:]
	if err := m.inOrder(len(numbers), func(from, to int) {
		for _, n := range numbers[from:to] {
			if n != None {
				counts[n]++
			}
		}
	}); err != nil {
		return err
	}
	for i := 1; i < len(m.ends); i++ {
		m.ends[i] += m.ends[i-1]
	}
	return m.inOrder(len(numbers), func(from, to int) {
		for i, n := range numbers[from:to] {
			if n != None {
				m.right[m.ends[n+1]] = uint32(from + i)
				m.ends[n+1]++
			}
		}
	})
}

// of returns the partners of a row of the left table.
func (m *matches) of(row int) []uint32 {
	n := m.left[row]
	if n == None {
		return nil
	}
	return m.right[m.ends[n]:m.ends[n+1]]
}

// only returns the rows of the left table that have partners, or those without one.
func (m *matches) only(some bool) ([]uint32, error) {
	n := 0
	if err := m.inOrder(len(m.left), func(from, to int) {
		for i := from; i < to; i++ {
			if (len(m.of(i)) > 0) == some {
				n++
			}
		}
	}); err != nil {
		return nil, err
	}
	rows := Room[uint32](m.Call, n)
	n = 0
	return rows, m.inOrder(len(m.left), func(from, to int) {
		for i := from; i < to; i++ {
			if (len(m.of(i)) > 0) == some {
				rows[n] = uint32(i)
				n++
			}
		}
	})
}

// pairs returns the rows that belong together; with all, a row of the left table without a partner
// is there once.
func (m *matches) pairs(all bool) (left, right []uint32, err error) {
	total := int64(0)
	if err := m.inOrder(len(m.left), func(from, to int) {
		for i := from; i < to; i++ {
			if n := len(m.of(i)); n > 0 || !all {
				total += int64(n)
			} else {
				total++
			}
		}
	}); err != nil {
		return nil, nil, err
	}
	if err := Check(total); err != nil {
		return nil, nil, fmt.Errorf("the result: %w", err)
	}
	left, right = Room[uint32](m.Call, int(total)), Room[uint32](m.Call, int(total))
	n := 0
	return left, right, m.inOrder(len(m.left), func(from, to int) {
		for i := from; i < to; i++ {
			partners := m.of(i)
			if len(partners) == 0 && all {
				left[n], right[n] = uint32(i), None
				n++
			}
			for _, r := range partners {
				left[n], right[n] = uint32(i), r
				n++
			}
		}
	})
}
