package millrace

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// Environment variables that name a cluster where the program does not.
const (
	EnvAddress       = "MILLRACE_ADDRESS"
	EnvToken         = "MILLRACE_TOKEN"
	EnvSchedulerFile = "MILLRACE_SCHEDULER_FILE"
)

// SchedulerFile is what a scheduler writes to the file that --scheduler-file names, once it takes requests.
type SchedulerFile struct {
	ID      string `json:"id"`
	Address string `json:"address"`
	HTTP    string `json:"http"`
	Token   string `json:"token"`
	PID     int    `json:"pid"`
}

// ReadSchedulerFile reads such a file.
func ReadSchedulerFile(path string) (SchedulerFile, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return SchedulerFile{}, fmt.Errorf("millrace: scheduler file: %w; is the cluster up?", err)
	}
	var f SchedulerFile
	if err := json.Unmarshal(data, &f); err != nil {
		return SchedulerFile{}, fmt.Errorf("millrace: scheduler file %s: %w", path, err)
	}
	if f.Address == "" {
		return SchedulerFile{}, fmt.Errorf("millrace: scheduler file %s has no address", path)
	}
	return f, nil
}

// findCluster fills in address and token: as given, else from a scheduler file that was given, else from the
// environment.
func findCluster(address, token, file string) (string, string, error) {
	if address != "" {
		if token == "" {
			token = os.Getenv(EnvToken)
		}
		return trimScheme(address), token, nil
	}
	if file == "" {
		if a := os.Getenv(EnvAddress); a != "" {
			if token == "" {
				token = os.Getenv(EnvToken)
			}
			return trimScheme(a), token, nil
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

func trimScheme(address string) string {
	return strings.TrimPrefix(strings.TrimPrefix(address, "millrace://"), "grpc://")
}
