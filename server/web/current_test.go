package web

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/millrace/millrace/internal/leader"
)

// TestAnswersWithoutABodyNeedTheLead: nothing that was read is told while another scheduler may
// lead, not even by a code alone. An answer of which a part was told ends without the rest.
func TestAnswersWithoutABodyNeedTheLead(t *testing.T) {
	write := func(w http.ResponseWriter) { _, _ = w.Write([]byte("part")) }
	flush := func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }
	code := func(w http.ResponseWriter) { w.WriteHeader(http.StatusAccepted) }
	const refused = http.StatusServiceUnavailable
	for name, c := range map[string]struct {
		do        []func(http.ResponseWriter)
		led, code int
		body      string
		broken    bool
	}{
		"a body":                      {[]func(http.ResponseWriter){code, write, write}, 9, http.StatusAccepted, "partpart", false},
		"a body without the lead":     {[]func(http.ResponseWriter){code, write, write}, 0, refused, "", false},
		"a body, the lead lost":       {[]func(http.ResponseWriter){code, write, write}, 1, http.StatusAccepted, "part", true},
		"a code":                      {[]func(http.ResponseWriter){code}, 9, http.StatusAccepted, "", false},
		"a code without the lead":     {[]func(http.ResponseWriter){code}, 0, refused, "", false},
		"nothing":                     {nil, 9, http.StatusOK, "", false},
		"nothing without the lead":    {nil, 0, refused, "", false},
		"a flush":                     {[]func(http.ResponseWriter){code, flush, write}, 9, http.StatusAccepted, "part", false},
		"a flush without the lead":    {[]func(http.ResponseWriter){code, flush, write}, 0, refused, "", false},
		"a flush, then the lead lost": {[]func(http.ResponseWriter){code, flush, write}, 1, http.StatusAccepted, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			s := &Site{config: Config{Leads: func(context.Context) error {
				if asked++; asked > c.led {
					return leader.Refusal("b:1")
				}
				return nil
			}}}
			to := httptest.NewRecorder()
			broken := func() (broken bool) {
				defer func() { broken = recover() != nil }()
				s.current(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					for _, do := range c.do {
						do(w)
					}
				})).ServeHTTP(to, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody))
				return false
			}()
			if to.Code != c.code || broken != c.broken || c.code != refused && to.Body.String() != c.body {
				t.Errorf("%d %q, broken: %v", to.Code, to.Body, broken)
			}
		})
	}
}
