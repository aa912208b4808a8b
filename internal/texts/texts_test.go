package texts_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/texts"
)

func TestTextIsCutBetweenCharacters(t *testing.T) {
	blocks := strings.Repeat("█", 100)
	for cut := 0; cut < 10; cut++ {
		if got := texts.Tail([]byte(blocks), 200+cut); got != strings.Repeat("█", (200+cut)/3) {
			t.Errorf("the last %d bytes: %q", 200+cut, got)
		}
		got := texts.Head(blocks, 200+cut)
		if !strings.HasPrefix(got, "██") || !strings.HasSuffix(got, "█… (cut: 300 bytes in all)") || len(got) > 200+cut || len(got) < 190 {
			t.Errorf("the first %d bytes: %q", 200+cut, got)
		}
	}
	if got := texts.Head(blocks, 300); got != blocks {
		t.Errorf("a text that need not be cut: %q", got)
	}
	if got := texts.Head("a\xffb", 64); got != "a�b" {
		t.Errorf("got %q", got)
	}
}

func FuzzTexts(f *testing.F) {
	f.Add([]byte("plain"), uint(3))
	f.Add([]byte(strings.Repeat("█", 40)), uint(64))
	f.Add([]byte("caf\xe9 in Latin-1\xff\xfe"+strings.Repeat("\xe9a", 90)), uint(80))
	f.Add([]byte(strings.Repeat("\x80", 300)), uint(100))
	f.Fuzz(func(t *testing.T, text []byte, most uint) {
		limit := 64 + int(most%4096)
		for name, got := range map[string]string{"head": texts.Head(string(text), limit), "tail": texts.Tail(text, limit)} {
			if !utf8.ValidString(got) || len(got) > limit {
				t.Errorf("%s of %q with %d: %q", name, text, limit, got)
			}
			if utf8.Valid(text) && len(text) <= limit && got != string(text) {
				t.Errorf("%s changed %q to %q", name, text, got)
			}
		}
	})
}
