// Package text is an Adapter: it makes texts of any origin fit for messages. A protobuf string must be valid UTF-8, or the message that
// carries it cannot be sent; and a text that others made has no length that one can rely on.
package text

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Valid returns s with U+FFFD in place of bytes that are no UTF-8; s itself if there are none.
func Valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// Cut returns at most limit bytes of s, as valid UTF-8: its beginning, and how much was left out. A limit that has no room
// for the note leaves it out.
func Cut(s string, limit int) string {
	if len(s) <= limit {
		if s = Valid(s); len(s) <= limit {
			return s
		}
	}
	note := fmt.Sprintf("... (%d bytes in all)", len(s))
	if len(note) > limit {
		note = ""
	}
	return begin(s, limit-len(note)) + note
}

// Middle is Cut for texts whose end says as much as their beginning: what is left out is a piece before the end.
func Middle(s string, limit int) string {
	if len(s) <= limit {
		if s = Valid(s); len(s) <= limit {
			return s
		}
	}
	note := fmt.Sprintf(" ... (%d bytes in all) ... ", len(s))
	if 2*len(note) > limit {
		return Cut(s, limit)
	}
	end := Tail(s, (limit-len(note))/3)
	return begin(s, limit-len(note)-len(end)) + note + end
}

// Tail returns at most limit bytes of the end of s, as valid UTF-8.
func Tail(s string, limit int) string {
	if len(s) > limit {
		s = s[len(s)-limit:]
		for i := 0; i < utf8.UTFMax-1 && s != "" && !utf8.RuneStart(s[0]); i++ {
			s = s[1:]
		}
	}
	for s = Valid(s); len(s) > limit; { // A replacement is longer than what it replaces.
		_, n := utf8.DecodeRuneInString(s)
		s = s[n:]
	}
	return s
}

// begin returns at most limit bytes of the beginning of s, as valid UTF-8.
func begin(s string, limit int) string {
	s = Valid(s[:cutAt(s, limit)])
	return s[:cutAt(s, limit)]
}

// cutAt is where at most limit bytes end without a character cut in two.
func cutAt(s string, limit int) int {
	if limit >= len(s) {
		return len(s)
	}
	end := limit
	for end > 0 && end > limit-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	if !utf8.RuneStart(s[end]) {
		return limit // No UTF-8 at all.
	}
	return end
}
