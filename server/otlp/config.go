package otlp

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"
)

// Protocol is a transport of OTLP.
type Protocol string

// Protocols, by the names that OpenTelemetry gives them.
const (
	GRPC Protocol = "grpc"
	HTTP Protocol = "http/protobuf"
)

// Config sets up an exporter. Zero fields mean the defaults named here.
type Config struct {
	// Endpoint is the URL of the collector: http or https, the latter with TLS, host and port. By
	// HTTP, spans go to exactly this URL.
	Endpoint *url.URL
	Protocol Protocol
	// Headers are sent along with each request.
	Headers map[string]string
	// TLS is used for https.
	TLS *tls.Config
	// Sample is the share of the graphs that are traced among those that come without the span of a
	// client.
	Sample float64
	// Timeout of one request; 0: 10 s.
	Timeout time.Duration
	// Resource describes the scheduler: names of attributes, and their values.
	Resource map[string]string
	// Version of the program, and the id of this scheduler.
	Version, Instance string
	// Interval is the time between two looks at the scheduler; 0: 0.5 s.
	Interval time.Duration
	Log      *slog.Logger
}

// tracesPath is the part of the URL that a common endpoint does not have.
const tracesPath = "v1/traces"

// ParseEndpoint reads the URL of a collector. Without a protocol it is GRPC, or HTTP at the usual
// port of that, 4318. Unless the URL is for traces alone, v1/traces is appended to it for HTTP.
func ParseEndpoint(text string, protocol Protocol, tracesOnly bool) (*url.URL, Protocol, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, "", fmt.Errorf("%q: a URL such as http://localhost:4317, or https:// for TLS", text)
	}
	switch protocol {
	case "":
		protocol = GRPC
		if u.Port() == "4318" {
			protocol = HTTP
		}
	case GRPC, HTTP:
	default:
		return nil, "", fmt.Errorf("the protocol %q: it is %s or %s", string(protocol), GRPC, HTTP)
	}
	switch {
	case protocol == HTTP && !tracesOnly:
		u = u.JoinPath(tracesPath)
	case protocol == GRPC && strings.Trim(u.Path, "/") != "":
		return nil, "", fmt.Errorf("%q: a URL for gRPC has no path; for HTTP set OTEL_EXPORTER_OTLP_PROTOCOL=%s", text, HTTP)
	}
	return u, protocol, nil
}

// ParsePairs reads a list of the form name=value,name=value whose values are percent-encoded, as
// the variables of OpenTelemetry have it.
func ParsePairs(text string) (map[string]string, error) {
	pairs := map[string]string{}
	for pair := range strings.SplitSeq(text, ",") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		name, value, found := strings.Cut(pair, "=")
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if name = strings.TrimSpace(name); !found || name == "" || err != nil {
			return nil, errors.New("it has the form name=value,name=value, with percent-encoded values")
		}
		pairs[name] = value
	}
	return pairs, nil
}

// Trust returns a configuration of TLS that trusts the certificates of a file in PEM form alone;
// empty: those that the machine trusts.
func Trust(file string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if file == "" {
		return config, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	config.RootCAs = x509.NewCertPool()
	if !config.RootCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate in PEM form", file)
	}
	return config, nil
}
