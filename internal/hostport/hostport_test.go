package hostport

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// TestAddressesOfSchedulers: the Python client reads addresses as Go does. Its tests have the same
// table.
func TestAddressesOfSchedulers(t *testing.T) {
	data, err := os.ReadFile("testdata/addresses.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct{ Text, Want, Wrong string }
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	for _, tc := range cases {
		got, err := Dial(tc.Text)
		if tc.Wrong != "" {
			if err == nil || !strings.Contains(err.Error(), tc.Wrong) {
				t.Errorf("%q: %q, %v; want an error with %q", tc.Text, got, err, tc.Wrong)
			}
		} else if err != nil || got != tc.Want {
			t.Errorf("%q: %q, %v; want %q", tc.Text, got, err, tc.Want)
		}
	}
}

func TestAddresses(t *testing.T) {
	listen := func(text string) (string, error) { return text, Listen(text) }
	advertise := func(text string) (string, error) {
		host, port, err := Advertise(text)
		return host + "|" + port, err
	}
	for _, tc := range []struct {
		read     func(string) (string, error)
		text     string
		want     string
		contains string // of the error
	}{
		{listen, "127.0.0.1:0", "127.0.0.1:0", ""},
		{listen, ":7786", ":7786", ""},
		{listen, "[::]:65535", "[::]:65535", ""},
		{listen, "[fe80::1%eth0]:1", "[fe80::1%eth0]:1", ""},
		{listen, "my_host-1.example:1", "my_host-1.example:1", ""},
		{listen, "127.0.0.1", "", "give host:port"},
		{listen, "", "", "give host:port"},
		{listen, "127.0.0.1:65536", "", `the port "65536" is not a number from 0 to 65535`},
		{listen, "127.0.0.1:-1", "", `the port "-1"`},
		{listen, "127.0.0.1:+1", "", `the port "+1"`},
		{listen, "127.0.0.1:", "", `the port ""`},
		{listen, "\x1b[2J:1", "", `\x1b`},
		{listen, "a b:1", "", `"a b" is neither`},
		{Dial, "dns:///host:1", "dns:///host:1", ""},
		{Dial, "host", "", "give host:port"},
		{Dial, ":1", "", `"" is neither`},
		{Dial, "host:0", "", "from 1 to 65535"},
		{Dial, "host:99999", "", "from 1 to 65535"},
		{Dial, "::1:1", "", "not an address of a scheduler"},
		{Dial, "a\x1b:1", "", `\x1b`},
		{Dial, "unix:/\x1b", "", "control characters"},
		{Dial, "\xff:1", "", "is neither"},
		{Dial, strings.Repeat("a", 254) + ":1", "", "is neither"},
		{advertise, "host", "host|", ""},
		{advertise, "host:9", "host|9", ""},
		{advertise, "::1", "::1|", ""},
		{advertise, "[::1]", "::1|", ""},
		{advertise, "[::1]:9", "::1|9", ""},
		{advertise, "10.0.0.1", "10.0.0.1|", ""},
		{advertise, "0.0.0.0", "", "nobody can reach"},
		{advertise, "[::]:7", "", "nobody can reach"},
		{advertise, "\x1b:99999", "", `\x1b`},
		{advertise, "host:99999", "", "from 1 to 65535"},
		{advertise, "host:0", "", "from 1 to 65535"},
		{advertise, "a:b:c", "", "is not an address"},
		{advertise, "", "", "is neither"},
	} {
		got, err := tc.read(tc.text)
		if tc.contains != "" {
			if err == nil || !strings.Contains(err.Error(), tc.contains) || strings.ContainsRune(err.Error(), '\x1b') {
				t.Errorf("%q: %q, %v; want an error with %q", tc.text, got, err, tc.contains)
			}
		} else if err != nil || got != tc.want {
			t.Errorf("%q: %q, %v; want %q", tc.text, got, err, tc.want)
		}
	}
}
