package faults

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/millrace/millrace/internal/access"
	"github.com/millrace/millrace/internal/roletoken"
)

// supervisorFiles returns the descriptors that a supervisor gives to its child: a file with the
// secret for a cluster with this token ("" means that the cluster has none), and one that takes the
// child's signs of life. The test starts the child itself. The secret has the format that
// cmd/millrace/cli reads.
func supervisorFiles(t *testing.T, token string) []*os.File {
	t.Helper()
	var secret struct {
		Token  string        `json:"token"`
		Accept access.Tokens `json:"accept"`
	}
	if token != "" {
		secret.Token = roletoken.Worker(token)
		secret.Accept = access.Tokens{access.TokenOf(token, access.Operator)}
	}
	text, err := json.Marshal(secret)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(name, text, 0o600); err != nil {
		t.Fatal(err)
	}
	read, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	signs, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = read.Close()
		_ = signs.Close()
	})
	return []*os.File{read, signs}
}
