package text_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/text"
)

func FuzzWhatIsCutIsValidAndShort(f *testing.F) {
	f.Add("plain", 3)
	f.Add(strings.Repeat("█", 5000), 8192)
	f.Add("\xff\xfe\x80\x80\x80\x80", 4)
	f.Add("\xf0\x9f\x98", 2)
	f.Add("", 0)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		if limit < 0 || limit > 1<<20 {
			return
		}
		for name, got := range map[string]string{"Cut": text.Cut(s, limit), "Tail": text.Tail(s, limit), "Middle": text.Middle(s, limit)} {
			if len(got) > limit || !utf8.ValidString(got) {
				t.Errorf("%s(%q, %d) = %q", name, s, limit, got)
			}
			if utf8.ValidString(s) && len(s) <= limit && got != s {
				t.Errorf("%s(%q, %d) = %q although it fits", name, s, limit, got)
			}
		}
		if !utf8.ValidString(text.Valid(s)) {
			t.Errorf("Valid(%q) = %q", s, text.Valid(s))
		}
	})
}

func TestWhatWasCutSaysSo(t *testing.T) {
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
