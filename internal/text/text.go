// Package text is an Interface: it makes foreign texts (output of tasks, messages of libraries,
// errors that quote a client) fit into messages. A protobuf string must be valid UTF-8, or the
// message that carries it cannot be sent; and foreign texts may have any length.
package text

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Valid returns s with U+FFFD in place of bytes that are not UTF-8; s itself if there are none.
func Valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// Cut returns at most limit bytes of s, as valid UTF-8: its beginning, and a note with the length
// of all of s. If limit has no room for the note, it is left out.
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

// Middle is Cut for texts whose end is as important as their beginning: it leaves out a piece in
// the middle.
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
func Tail[T string | []byte](s T, limit int) string {
	end := string(s[len(s)-min(len(s), max(limit, 0)):])
	if len(end) < len(s) {
		end = end[restAt(end):]
	}
	// U+FFFD is longer than the byte that it replaces.
	for end = Valid(end); len(end) > limit && end != ""; {
		_, n := utf8.DecodeRuneInString(end)
		end = end[n:]
	}
	return end
}

// CutFront removes at least the given number of bytes from the front of s, and the rest of a
// character that the cut would split.
func CutFront(s []byte, bytes int) []byte {
	if bytes <= 0 {
		return s
	}
	s = s[min(bytes, len(s)):]
	return s[restAt(s):]
}

// restAt returns the index of the first whole character in a text that may begin inside of a
// character.
func restAt[T string | []byte](s T) (i int) {
	for i < min(len(s), utf8.UTFMax-1) && !utf8.RuneStart(s[i]) {
		i++
	}
	return i
}

// begin returns at most limit bytes of the beginning of s, as valid UTF-8.
func begin(s string, limit int) string {
	s = Valid(s[:cutAt(s, limit)])
	return s[:cutAt(s, limit)]
}

// cutAt returns the largest index up to limit that does not split a character.
func cutAt(s string, limit int) int {
	if limit >= len(s) {
		return len(s)
	}
	end := limit
	for end > 0 && end > limit-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	if !utf8.RuneStart(s[end]) {
		return limit // not UTF-8 at all
	}
	return end
}

// Lane describes the transport of a connection, and the ends ("source", "reader", "both") at which
// its bytes are staged in host memory: " (rc_mlx5, staged at both ends)". It is empty if the
// transport is.
func Lane(transport, staged string) string {
	switch {
	case transport == "":
		return ""
	case staged == "":
		return " (" + transport + ")"
	case staged == "both":
		return " (" + transport + ", staged at both ends)"
	}
	return " (" + transport + ", staged at the " + staged + ")"
}
