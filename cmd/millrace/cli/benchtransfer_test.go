//go:build cgo && linux

package cli

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
)

func TestBenchTransferRefusesBadFlags(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"one host":     {[]string{"--hosts", "a"}, `--hosts ["a"]: two names`},
		"three hosts":  {[]string{"--hosts", "a,b,c"}, `--hosts ["a" "b" "c"]: two names`},
		"empty host":   {[]string{"--hosts", "a,"}, `--hosts ["a" ""]: two names`},
		"protocol":     {[]string{"--hosts", "a,b", "--protocol", "ucx"}, "--protocol with --hosts"},
		"memory":       {[]string{"--hosts", "a,b", "--memory", "disk"}, "--memory disk: host or cuda"},
		"sizes":        {[]string{"--hosts", "a,b", "--sizes", "1KiB"}, "--sizes 1KiB: bytes such as 64KiB, at least"},
		"objects":      {[]string{"--hosts", "a,b", "--objects", "0"}, "--objects 0: 1 to 1000"},
		"many objects": {[]string{"--objects", "1001"}, "--objects 1001: 1 to 1000"},
		"samples":      {[]string{"--hosts", "a,b", "--samples", "-1"}, "--samples -1: 0 or more"},
		"no cluster":   {[]string{"--hosts", "a,b"}, errNoCluster.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			text, err := says(t, []string{"MILLRACE_ADDRESS=", "MILLRACE_SCHEDULER_FILE="}, append([]string{"bench", "transfer"}, c.args...)...)
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != exitUsage || !strings.Contains(text, c.want) {
				t.Errorf("%v: %s", err, text)
			}
		})
	}
}
