package roletoken_test

import (
	"testing"

	"github.com/millrace/millrace/internal/roletoken"
)

func TestRolesHaveTokensOfTheirOwn(t *testing.T) {
	seen := map[string]bool{"one": true, "two": true}
	for _, token := range []string{"one", "two"} {
		for _, of := range []string{roletoken.Worker(token), roletoken.Task(token), roletoken.Reader(token), roletoken.Peer(token)} {
			if seen[of] || len(of) != 32 {
				t.Errorf("%q is derived from %q", of, token)
			}
			seen[of] = true
		}
	}
	if roletoken.Worker("") != "" || roletoken.Task("") != "" || roletoken.Reader("") != "" || roletoken.Peer("") != "" {
		t.Error("a cluster without a token has tokens of roles")
	}
}
