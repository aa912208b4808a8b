package cli

import (
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// plain makes a text safe for a terminal. Keys, names and errors come from other people. Characters
// that move the cursor, change the clipboard or turn the direction of writing are shown as escapes.
func plain(text string) string { return escaped(text, "") }

// plainLines is plain for texts of several lines: it keeps newlines and tabs.
func plainLines(text string) string { return escaped(text, "\n\t") }

func escaped(text, except string) string {
	if strings.IndexFunc(text, func(r rune) bool { return hidden(r) && !strings.ContainsRune(except, r) }) < 0 && utf8.ValidString(text) {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, text[0])
		case hidden(r) && !strings.ContainsRune(except, r):
			if r > 0xffff {
				fmt.Fprintf(&b, `\U%08x`, r)
			} else {
				fmt.Fprintf(&b, `\u%04x`, r) // as in JSON
			}
		default:
			b.WriteString(text[:n])
		}
		text = text[n:]
	}
	return b.String()
}

// hidden reports whether a character is invisible and may change what a terminal shows: a control
// or format character, or a separator of lines. The two joiners are excepted, because emoji and
// some scripts need them.
func hidden(r rune) bool {
	const nonJoiner, joiner = '\u200c', '\u200d'
	return unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp) && r != nonJoiner && r != joiner
}

// inCommands replaces advice for users of the API in the scheduler's errors, such as "see
// ListTasks", by advice for users of this program.
var inCommands = strings.NewReplacer(
	"see ListWorkers, with states for those that are lost", "see `millrace get workers`, with --state LOST for those that are lost",
	"set wait, or see ExplainTask for why it is not done", "give --wait, or see `millrace explain` for why it is not done",
	"fetch it from a worker (LocateObjects, then DataService.ReadObjects)", "fetch it with a client",
	"see ListWorkers", "see `millrace get workers`",
	"see ListTasks", "see `millrace get tasks`",
	"see ListGraphs", "see `millrace get graphs`",
	"see ListDatasets", "see `millrace get datasets`",
	"see ExplainTask", "see `millrace explain`",
)

// clientPrefix matches the name of the call that the Go client puts before a message.
var clientPrefix = regexp.MustCompile(`\bmillrace: [A-Z][A-Za-z]+: `)

// unconnected matches gRPC's text for a connection that could not be made, and unresolved that for
// a name of a host that has no address.
var (
	unconnected = regexp.MustCompile(`connection error: desc = "transport: Error while dialing: dial tcp ([^" ]+): (?:connect: )?([^"]*)"`)
	unresolved  = regexp.MustCompile(`connection error: desc = "transport: Error while dialing: (?:dial tcp: )?([^"]*)"`)
)

// errorText formats an error for the terminal, without the names of calls.
func errorText(err error) string {
	text := rpcPrefix.ReplaceAllString(clientPrefix.ReplaceAllString(err.Error(), ""), "")
	text = unconnected.ReplaceAllString(text, "cannot connect to $1: $2: check the address, and that it runs")
	text = unresolved.ReplaceAllString(text, "cannot connect: $1")
	return plainLines(inCommands.Replace(text))
}

// pastable returns an address to which clients can connect. It replaces an empty or unspecified
// host by the name of this machine, or by 127.0.0.1 if that name cannot be resolved.
func pastable(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil || !unspecified(host) {
		return address
	}
	name, err := os.Hostname()
	if err == nil {
		_, err = net.LookupHost(name)
	}
	if err != nil {
		name = "127.0.0.1"
	}
	return net.JoinHostPort(name, port)
}

func unspecified(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}
