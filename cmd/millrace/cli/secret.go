package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	millrace "github.com/millrace/millrace/clients/go"
	"github.com/millrace/millrace/internal/access"
	"github.com/millrace/millrace/internal/roletoken"
	"github.com/millrace/millrace/worker/supervisor"
)

// handed is the secret that a supervisor gives to a child through a pipe. It is not passed in
// arguments, which every user can list, nor in the environment, which tasks can read.
type handed struct {
	// Token is the child's own token, Task is the token of its tasks.
	Token string `json:"token"`
	Task  string `json:"task"`
	// Accept are further tokens that the child accepts from callers.
	Accept access.Tokens `json:"accept"`
}

// hand returns the secret for the children of a cluster with this token.
func hand(token string) ([]byte, error) {
	h := handed{Token: roletoken.Worker(token), Task: roletoken.Task(token)}
	if token != "" {
		h.Accept = access.Tokens{access.TokenOf(token, access.Operator), access.TokenOf(h.Task, access.Task), access.TokenOf(roletoken.Reader(token), access.Reader)}
	}
	return json.Marshal(h)
}

// inherited returns the secret that this child got from its supervisor.
func inherited() (*supervisor.Link, *handed, error) {
	link, err := supervisor.Inherited()
	if err != nil {
		return nil, nil, err
	}
	h := new(handed)
	if err := json.Unmarshal(link.Secret(), h); err != nil {
		return nil, nil, fmt.Errorf("read the secret of the supervisor: %w", err)
	}
	return link, h, nil
}

// token returns the token that the settings name; empty if they name none.
func (a *app) token() (string, error) {
	name := a.settings.String("token-file")
	if token := a.settings.String("token"); token != "" || name == "" {
		return token, nil
	}
	text, err := readFile(name, mostToken, false)
	if err != nil {
		return "", usageError{fmt.Errorf("--token-file: %w", err)}
	}
	token := strings.TrimSpace(string(text))
	if token == "" || strings.ContainsAny(token, " \t\n") {
		return "", usageError{fmt.Errorf("--token-file %s: it holds one line with the token, and nothing else", name)}
	}
	return token, nil
}

// Guard returns the arguments of this program. If the cluster's token is among them or in the
// environment, Guard hides it from users that list the arguments and environments of processes.
// Call it before anything else.
func Guard(args []string) []string {
	own := make([]string, len(args))
	for i, arg := range args {
		own[i] = strings.Clone(arg) // hide overwrites the original memory
	}
	var secrets []string
	for i, arg := range own {
		if strings.HasPrefix(arg, "--token=") {
			secrets = append(secrets, arg)
		} else if arg == "--token" && i+1 < len(own) {
			secrets = append(secrets, "--token\x00"+own[i+1])
		}
	}
	if token := os.Getenv(millrace.EnvToken); token != "" {
		secrets = append(secrets, millrace.EnvToken+"="+token)
	}
	if len(secrets) > 0 {
		// It is a precaution: if a sandbox forbids it, the program works nevertheless.
		_ = hide(secrets)
	}
	return own
}

// hide overwrites the values of the secrets in the memory from which the kernel shows this
// process's arguments and environment.
func hide(secrets []string) error {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return err
	}
	// Fields 48 to 51 are the addresses at which the arguments and the environment begin and end.
	// The name in parentheses is field 2.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	const first = 48 - 3
	if len(fields) < first+4 {
		return fmt.Errorf("/proc/self/stat has %d fields", len(fields))
	}
	memory, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer memory.Close()
	for i := first; i < first+4; i += 2 {
		from, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return err
		}
		to, err := strconv.ParseInt(fields[i+1], 10, 64)
		if err != nil || to <= from {
			continue
		}
		text := make([]byte, to-from)
		if _, err := memory.ReadAt(text, from); err != nil {
			return err
		}
		before := slices.Clone(text)
		for _, secret := range secrets {
			name := strings.IndexAny(secret, "=\x00") + 1
			for at := 0; ; at += len(secret) {
				next := bytes.Index(text[at:], []byte(secret))
				if next < 0 {
					break
				}
				at += next
				for j := at + name; j < at+len(secret); j++ {
					text[j] = '*'
				}
			}
		}
		if bytes.Equal(before, text) {
			continue
		}
		if _, err := memory.WriteAt(text, from); err != nil {
			return err
		}
	}
	return nil
}

// withdraw prevents other processes of the same user, except root, from reading this process's
// memory, environment and open files. Processes with the operator's token call it. Workers do not,
// because UCX reads their memory in the same way.
func withdraw() {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		slog.Warn("other processes of this user can read the token in this one's memory", "error", err)
	}
}
