// Package texts is an Interface: texts that come from elsewhere (output of tasks, messages of libraries, errors that quote
// what a client sent), made fit for messages. A protobuf string must be valid UTF-8, or the message that it is in cannot be
// sent at all; and it must be short, or it fills the message.
package texts

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// replacement stands where bytes were that are not UTF-8.
const replacement = "�"

// Valid returns a text as valid UTF-8.
func Valid(text string) string { return strings.ToValidUTF8(text, replacement) }

// Head returns the beginning of a text as valid UTF-8, of so many bytes at most. A text that was cut says how much is missing.
// REQUIRES: most is at least 64.
func Head(text string, most int) string {
	if len(text) <= most {
		if text = Valid(text); len(text) <= most {
			return text
		}
	}
	mark := fmt.Sprintf("… (cut: %d bytes in all)", len(text))
	// A byte that is not UTF-8 takes three once it is replaced, so the text is cut again.
	return firstBytes(Valid(firstBytes(text, most-len(mark))), most-len(mark)) + mark
}

// Tail returns the end of a text as valid UTF-8, of so many bytes at most.
func Tail(text []byte, most int) string {
	valid := Valid(string(lastBytes(text, most)))
	return string(lastBytes([]byte(valid), most))
}

// CutFront removes at least so many bytes from the front of a text, and what is left of the character that is cut by it.
func CutFront(text []byte, bytes int) []byte {
	return lastBytes(text, len(text)-bytes)
}

// firstBytes cuts between characters, if there are any.
func firstBytes(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for end := most; end > most-utf8.UTFMax && end >= 0; end-- {
		if utf8.RuneStart(text[end]) {
			return text[:end]
		}
	}
	return text[:most]
}

// lastBytes cuts between characters, if there are any.
func lastBytes(text []byte, most int) []byte {
	if len(text) <= most {
		return text
	}
	text = text[len(text)-max(most, 0):]
	for skip := 0; skip < utf8.UTFMax && skip < len(text); skip++ {
		if utf8.RuneStart(text[skip]) {
			return text[skip:]
		}
	}
	return text
}
