package cli

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/server/otlp"
)

func otlpFlags(f *pflag.FlagSet) {
	f.String("otlp", "", "URL of a collector of OpenTelemetry that gets traces of graphs, such as http://localhost:4317 (OTLP by gRPC; by HTTP at port 4318); none: nowhere; empty: as OTEL_EXPORTER_OTLP_ENDPOINT says")
	f.Float64("otlp-sample", 1, "share of the graphs that are traced, 0 to 1, among those that no span of a client comes with; the flag of such a span decides for the others")
}

// otlpVariable begins the variables of OpenTelemetry that the scheduler reads.
const otlpVariable = "OTEL_EXPORTER_OTLP_"

// traces returns where the scheduler sends traces; nil: nowhere. As OpenTelemetry wants it, a bad
// variable of its own does not stop the scheduler: it is logged, and there are no traces.
func (a *app) traces() (*otlp.Config, error) {
	endpoint := a.settings.String("otlp")
	// forTraces prefers the variable for traces alone, and says whether it is that one.
	forTraces := func(name string) (string, bool) {
		own := os.Getenv(otlpVariable + "TRACES_" + name)
		return cmp.Or(own, os.Getenv(otlpVariable+name)), own != ""
	}
	fromFlag, tracesOnly := endpoint != "", false
	if !fromFlag && os.Getenv("OTEL_SDK_DISABLED") != "true" && os.Getenv("OTEL_TRACES_EXPORTER") != "none" {
		endpoint, tracesOnly = forTraces("ENDPOINT")
	}
	if endpoint == "" || endpoint == "none" {
		return nil, nil
	}
	config, err := tracesTo(endpoint, tracesOnly, forTraces)
	switch {
	case err == nil:
		config.Sample = a.settings.Float64("otlp-sample")
		return config, nil
	case fromFlag:
		return nil, usageError{fmt.Errorf("--otlp %w", err)}
	}
	slog.Warn("there are no traces: a variable of OpenTelemetry is wrong", "error", err)
	return nil, nil
}

func tracesTo(endpoint string, tracesOnly bool, setting func(name string) (string, bool)) (config *otlp.Config, err error) {
	config = &otlp.Config{}
	protocol, _ := setting("PROTOCOL")
	if config.Endpoint, config.Protocol, err = otlp.ParseEndpoint(endpoint, otlp.Protocol(protocol), tracesOnly); err != nil {
		return nil, err
	}
	headers, _ := setting("HEADERS")
	if config.Headers, err = otlp.ParsePairs(headers); err != nil {
		return nil, fmt.Errorf("%s: %sHEADERS: %w", endpoint, otlpVariable, err) // NB: without its value, which is secret.
	}
	certificate, _ := setting("CERTIFICATE")
	if config.TLS, err = otlp.Trust(certificate); err != nil {
		return nil, fmt.Errorf("%s: %sCERTIFICATE: %w", endpoint, otlpVariable, err)
	}
	if text, _ := setting("TIMEOUT"); text != "" {
		millis, err := strconv.ParseUint(text, 10, 32)
		if err != nil || millis == 0 || millis > math.MaxInt32 {
			return nil, fmt.Errorf("%s: %sTIMEOUT=%s: milliseconds, 1 or more", endpoint, otlpVariable, text)
		}
		config.Timeout = time.Duration(millis) * time.Millisecond
	}
	host, _ := os.Hostname() // Without it the attribute is missing.
	config.Resource = map[string]string{"service.name": "millrace", "host.name": host}
	own, err := otlp.ParsePairs(os.Getenv("OTEL_RESOURCE_ATTRIBUTES"))
	if err != nil {
		return nil, fmt.Errorf("%s: OTEL_RESOURCE_ATTRIBUTES: %w", endpoint, err)
	}
	maps.Copy(config.Resource, own)
	if name := os.Getenv("OTEL_SERVICE_NAME"); name != "" {
		config.Resource["service.name"] = name
	}
	return config, nil
}
