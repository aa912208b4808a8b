package millrace

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	"github.com/millrace/millrace/internal/hostport"
)

// Environment variables that identify a cluster if the program does not.
const (
	EnvAddress       = "MILLRACE_ADDRESS"
	EnvToken         = "MILLRACE_TOKEN"
	EnvSchedulerFile = "MILLRACE_SCHEDULER_FILE"
)

// SchedulerFile is the content of the file that --scheduler-file names. A scheduler writes it as
// soon as it accepts requests. Address may be a list, as for WithAddress.
type SchedulerFile struct {
	ID      string `json:"id"`
	Address string `json:"address"`
	HTTP    string `json:"http"`
	Token   string `json:"token"`
	PID     int    `json:"pid"`
}

// ReadSchedulerFile reads a scheduler file.
func ReadSchedulerFile(path string) (SchedulerFile, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return SchedulerFile{}, fmt.Errorf("millrace: scheduler file: %w; is the cluster up?", err)
	}
	wrong := func(format string, args ...any) (SchedulerFile, error) {
		return SchedulerFile{}, fmt.Errorf("millrace: scheduler file %s: %w; name the file that `millrace up` wrote", path, fmt.Errorf(format, args...))
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return wrong("it is empty")
	}
	var f SchedulerFile
	if err := json.Unmarshal(data, &f); err != nil {
		return wrong("it is not the JSON of a scheduler: %w", err)
	}
	if f.Address == "" {
		return wrong("it has no \"address\"")
	}
	if f.Address, err = hostport.Dial(f.Address); err != nil {
		return wrong("address: %w", err)
	}
	return f, nil
}

// findCluster returns the address and the token of the cluster. It takes the given ones, else those
// of the given scheduler file, else those of the environment.
func findCluster(address, token, file string) (string, string, error) {
	if address != "" {
		if token == "" {
			token = os.Getenv(EnvToken)
		}
		return checkAddress("WithAddress", address, token)
	}
	if file == "" {
		if a := os.Getenv(EnvAddress); a != "" {
			if token == "" {
				token = os.Getenv(EnvToken)
			}
			return checkAddress(EnvAddress, a, token)
		}
		file = os.Getenv(EnvSchedulerFile)
	}
	if file == "" {
		return "", "", fmt.Errorf("millrace: no cluster named: give WithAddress or WithSchedulerFile, or set %s (and %s) or %s; `millrace up` prints them", EnvAddress, EnvToken, EnvSchedulerFile)
	}
	f, err := ReadSchedulerFile(file)
	if err != nil {
		return "", "", err
	}
	if token == "" {
		token = f.Token
	}
	return f.Address, token, nil
}

// checkAddress checks an address; place names its source for the error message.
func checkAddress(place, address, token string) (string, string, error) {
	address, err := hostport.Dial(address)
	if err != nil {
		return "", "", fmt.Errorf("millrace: %s: %w", place, err)
	}
	return address, token, nil
}
