// Package hostport is an Adapter: it parses the "host:port" addresses that people write, and
// explains their faults. Its errors do not name the flag or file of the address; the callers add
// that.
package hostport

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// maxHost is the largest length of a host name in the DNS, in bytes.
const maxHost = 253

// Listen checks an address to listen at. An empty host means all addresses, and port 0 a free port.
func Listen(text string) error {
	const want = "give host:port, such as 127.0.0.1:7786, with port 0 for a free one"
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return fmt.Errorf("%q is not an address to listen at: %s", text, want)
	}
	if host != "" && !validHost(host) {
		return fmt.Errorf("%q: %q is neither the name of a host nor an IP address: %s", text, host, want)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q: the port %q is not a number from 0 to 65535: %s", text, port, want)
	}
	return nil
}

// Dial checks the address of a scheduler, or the addresses of several with commas between them, and
// returns them without spaces around them and without the schemes millrace://, grpc:// and tcp://.
// An address for another gRPC resolver, which begins with unix: or contains ":///", such as
// dns:///host:port, keeps its scheme; its host is not checked.
func Dial(text string) (string, error) {
	if !strings.Contains(text, ",") {
		return dial(text)
	}
	parts := strings.Split(text, ",")
	for i, part := range parts {
		if strings.TrimSpace(part) == "" {
			return "", fmt.Errorf("%q has an empty address: give host:port,host:port,... with one comma between two of them", text)
		}
		one, err := dial(part)
		if err != nil {
			return "", err
		}
		if slices.Contains(parts[:i], one) {
			return "", fmt.Errorf("%q has the address %s twice: give each scheduler once", text, one)
		}
		parts[i] = one
	}
	return strings.Join(parts, ","), nil
}

// dial is Dial for one address.
func dial(text string) (string, error) {
	const want = "give host:port, as `millrace up` prints it"
	rest := strings.TrimSpace(text)
	scheme, after, found := strings.Cut(rest, "://")
	switch {
	case !found:
	case scheme == "millrace" || scheme == "grpc" || scheme == "tcp":
		rest = after
	case scheme == "http" || scheme == "https":
		return "", fmt.Errorf("%q is an address of web pages, and clients speak gRPC: %s", text, want)
	}
	if strings.HasPrefix(rest, "unix:") || strings.Contains(rest, ":///") {
		if strings.ContainsFunc(rest, func(r rune) bool { return !unicode.IsGraphic(r) }) {
			return "", fmt.Errorf("%q has control characters: %s", text, want)
		}
		return rest, nil
	}
	rest = strings.TrimSuffix(rest, "/")
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		return "", fmt.Errorf("%q is not an address of a scheduler: %s", text, want)
	}
	if err := reachable(host, port); err != nil {
		return "", fmt.Errorf("%q: %w: %s", text, err, want)
	}
	return rest, nil
}

// Target returns the gRPC target of an address. An address with a resolver's scheme stays
// unchanged; any other is a host:port that is dialled without a resolver.
func Target(address string) string {
	for i := range len(address) {
		if address[i] == ':' && len(address) > i+2 && address[i+1] == '/' {
			return address
		}
	}
	return "passthrough:///" + address
}

// Advertise checks an address that is advertised to other machines, with or without a port. It
// returns host and port; the port is empty if the address has none.
func Advertise(text string) (host, port string, err error) {
	const want = "give the host, or host:port, at which other machines reach this one"
	host, port = strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"), ""
	// A colon does not prove that there is a port: an IPv6 address without one has colons, too.
	if _, err := netip.ParseAddr(host); err != nil && strings.Contains(text, ":") {
		if host, port, err = net.SplitHostPort(text); err != nil {
			return "", "", fmt.Errorf("%q is not an address: %s", text, want)
		}
		err = reachable(host, port)
		if err != nil {
			return "", "", fmt.Errorf("%q: %w: %s", text, err, want)
		}
	}
	if !validHost(host) {
		return "", "", fmt.Errorf("%q: %q is neither the name of a host nor an IP address: %s", text, host, want)
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		return "", "", fmt.Errorf("%q: nobody can reach %s: %s", text, host, want)
	}
	return host, port, nil
}

// Loopback reports whether an address of a listener cannot be reached from other hosts.
func Loopback(address net.Addr) bool {
	tcp, ok := address.(*net.TCPAddr)
	return !ok || tcp.IP.IsLoopback()
}

// NamesThisHost reports whether the Host header of a request names this host by a loopback name or
// address. A page of another site whose name was made to point here has that site's name.
func NamesThisHost(header string) bool {
	name, _, err := net.SplitHostPort(header)
	if err != nil {
		name = header
	}
	if len(name) > 2 && name[0] == '[' && name[len(name)-1] == ']' {
		name = name[1 : len(name)-1]
	}
	if ip := net.ParseIP(name); ip != nil {
		return ip.IsLoopback()
	}
	return name == "localhost"
}

// reachable checks a host and a port to which a client can connect. Port 0 is a fault.
func reachable(host, port string) error {
	if !validHost(host) {
		return fmt.Errorf("%q is neither the name of a host nor an IP address", host)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("the port %q is not a number from 1 to 65535", port)
	}
	return nil
}

// validHost reports whether a text may be an IP address or the name of a host. The DNS allows no
// underscores and no letters beyond ASCII in names of hosts, but /etc/hosts and names of containers
// have them.
func validHost(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return host != "" && len(host) <= maxHost && !strings.ContainsFunc(host, func(r rune) bool {
		return r == unicode.ReplacementChar || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_.", r)
	})
}
