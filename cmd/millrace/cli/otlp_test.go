package cli

import (
	"errors"
	"io"
	"strings"
	"testing"
)

// The flag says where traces go, else the variables of OpenTelemetry do. A wrong flag is an error;
// a wrong variable turns traces off.
func TestTracesGoWhereTheFlagOrTheVariablesSay(t *testing.T) {
	for _, c := range []struct {
		name      string
		flags     string
		variables map[string]string
		want      string // URL and protocol; empty: no traces
		wrong     string // a part of the error
	}{
		{name: "nothing"},
		{name: "flag", flags: "--otlp http://a:4317", want: "http://a:4317 grpc"},
		{name: "variable", variables: map[string]string{"ENDPOINT": "https://a:4318"}, want: "https://a:4318/v1/traces http/protobuf"},
		{name: "for traces", variables: map[string]string{"ENDPOINT": "http://a:1", "TRACES_ENDPOINT": "http://b:2/x", "PROTOCOL": "http/protobuf"}, want: "http://b:2/x http/protobuf"},
		{name: "both", flags: "--otlp http://a:4317", variables: map[string]string{"ENDPOINT": "http://b:4317", "TRACES_ENDPOINT": "http://c:4317"}, want: "http://a:4317 grpc"},
		{name: "none", flags: "--otlp none", variables: map[string]string{"ENDPOINT": "http://b:4317"}},
		{name: "no URL", flags: "--otlp a:4317", wrong: "http://localhost:4317"},
		{name: "no share", flags: "--otlp http://a:4317 --otlp-sample 1.5", wrong: "from 0 to 1"},
		{name: "bad variable", variables: map[string]string{"ENDPOINT": "a:4317"}},
		{name: "bad headers", flags: "--otlp http://a:4317", variables: map[string]string{"HEADERS": "secret"}, wrong: "OTEL_EXPORTER_OTLP_HEADERS"},
		{name: "bad timeout", flags: "--otlp http://a:4317", variables: map[string]string{"TIMEOUT": "10s"}, wrong: "TIMEOUT=10s"},
		{name: "no file", flags: "--otlp https://a:4317", variables: map[string]string{"CERTIFICATE": "missing.pem"}, wrong: "missing.pem"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, value := range c.variables {
				t.Setenv(otlpVariable+name, value)
			}
			t.Setenv(otlpVariable+"TRACES_TIMEOUT", "")
			t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=x,deployment.environment.name=test")
			a := &app{out: io.Discard, err: io.Discard}
			cmd, _, err := a.root().Find([]string{"scheduler"})
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.ParseFlags(strings.Fields(c.flags)); err != nil {
				t.Fatal(err)
			}
			settings, err := loadSettings(cmd)
			if err != nil {
				if c.wrong == "" || !strings.Contains(err.Error(), c.wrong) {
					t.Error(err)
				}
				return
			}
			a.settings = settings
			config, err := a.traces()
			switch {
			case c.wrong != "":
				if !errors.As(err, new(usageError)) || !strings.Contains(err.Error(), c.wrong) {
					t.Errorf("%v, want %s", err, c.wrong)
				}
			case err != nil || (config != nil) != (c.want != ""):
				t.Errorf("%v, %v", config, err)
			case config != nil:
				if got := config.Endpoint.String() + " " + string(config.Protocol); got != c.want || config.Sample != 1 {
					t.Errorf("%s: %+v", got, config)
				}
				if config.Resource["service.name"] != "x" || config.Resource["deployment.environment.name"] != "test" {
					t.Errorf("%v", config.Resource)
				}
			}
		})
	}
}
