package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/millrace/millrace/server/journal"
)

// tokenFile is the name of the file, in the directory of the journal, with the token that the
// scheduler made: clients and workers use it after a restart.
const tokenFile = "token"

// journal opens the directory of --journal; nil: there is none.
func (a *app) journal() (*journal.Directory, error) {
	name := a.settings.String("journal")
	if name == "" {
		return nil, nil //nolint:nilnil // without the flag there is neither a journal nor an error
	}
	directory, err := journal.OpenDirectory(name)
	if err != nil {
		return nil, usageError{fmt.Errorf("--journal: %w", err)}
	}
	return directory, nil
}

// keptToken returns the token that an earlier start of the scheduler has made, and keeps the given
// one if there is none.
func keptToken(files journal.Files, token string) (string, error) {
	text, err := files.Read(tokenFile)
	if kept := strings.TrimSpace(string(text)); err == nil && kept != "" {
		return kept, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("--journal: read the token: %w", err)
	}
	if err := journal.PutFile(files, tokenFile, []byte(token+"\n")); err != nil {
		return "", fmt.Errorf("--journal: keep the token: %w", err)
	}
	return token, nil
}
