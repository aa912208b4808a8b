package text_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/text"
)

func FuzzCutTextsAreValidAndShort(f *testing.F) {
	f.Add("plain", 3)
	f.Add(strings.Repeat("█", 5000), 8192)
	f.Add("\xff\xfe\x80\x80\x80\x80", 4)
	f.Add("\xf0\x9f\x98", 2)
	f.Add("", 0)
	f.Add("caf\xe9 in Latin-1\xff\xfe"+strings.Repeat("\xe9a", 90), 80)
	f.Add(strings.Repeat("\x80", 300), 100)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		if limit < 0 || limit > 1<<20 {
			return
		}
		for name, got := range map[string]string{
			"Cut": text.Cut(s, limit), "Tail": text.Tail(s, limit), "Tail of bytes": text.Tail([]byte(s), limit), "Middle": text.Middle(s, limit),
		} {
			if len(got) > limit || !utf8.ValidString(got) {
				t.Errorf("%s(%q, %d) = %q", name, s, limit, got)
			}
			if utf8.ValidString(s) && len(s) <= limit && got != s {
				t.Errorf("%s(%q, %d) = %q although it fits", name, s, limit, got)
			}
		}
		rest := text.CutFront([]byte(s), limit)
		if len(rest) > max(len(s)-limit, 0) || !strings.HasSuffix(s, string(rest)) || utf8.ValidString(s) && !utf8.Valid(rest) {
			t.Errorf("CutFront(%q, %d) = %q", s, limit, rest)
		}
		if !utf8.ValidString(text.Valid(s)) {
			t.Errorf("Valid(%q) = %q", s, text.Valid(s))
		}
	})
}

func TestCutTextsAreMarked(t *testing.T) {
	got := text.Cut(strings.Repeat("█", 100), 64)
	if !strings.HasPrefix(got, "██") || !strings.HasSuffix(got, "(300 bytes in all)") {
		t.Errorf("Cut: %q", got)
	}
	if got := text.Middle("the "+strings.Repeat("█", 100)+" end", 90); !strings.HasPrefix(got, "the █") || !strings.HasSuffix(got, "█ end") {
		t.Errorf("Middle: %q", got)
	}
	if got := text.Tail("ab█", 4); got != "b█" {
		t.Errorf("Tail: %q", got)
	}
}

func TestTextIsCutBetweenCharacters(t *testing.T) {
	blocks := strings.Repeat("█", 100)
	for cut := range 10 {
		if got := text.Tail([]byte(blocks), 200+cut); got != strings.Repeat("█", (200+cut)/3) {
			t.Errorf("the last %d bytes: %q", 200+cut, got)
		}
		if got := text.CutFront([]byte(blocks), cut); string(got) != strings.Repeat("█", 100-(cut+2)/3) {
			t.Errorf("without the first %d bytes: %q", cut, got)
		}
		got := text.Cut(blocks, 200+cut)
		if !strings.HasPrefix(got, "██") || !strings.HasSuffix(got, "█... (300 bytes in all)") || len(got) > 200+cut || len(got) < 190 {
			t.Errorf("the first %d bytes: %q", 200+cut, got)
		}
	}
	if got := text.Cut(blocks, 300); got != blocks {
		t.Errorf("a text that need not be cut: %q", got)
	}
	if got := text.Cut("a\xffb", 64); got != "a\uFFFDb" {
		t.Errorf("got %q", got)
	}
}

func TestLanes(t *testing.T) {
	for want, of := range map[string][2]string{
		"": {"", "both"}, " (cma)": {"cma", ""}, " (rc_mlx5, staged at both ends)": {"rc_mlx5", "both"}, " (rc_mlx5, staged at the source)": {"rc_mlx5", "source"},
	} {
		if got := text.Lane(of[0], of[1]); got != want {
			t.Errorf("%q: %q, want %q", of, got, want)
		}
	}
}
