package e2e

import (
	"strings"
	"testing"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// Names from other users are shown but never executed by the terminal, and errors name commands,
// not API methods.
func TestOutputIsForPeople(t *testing.T) {
	client := shared.dial(t, millrace.WithName("client\x1b]0;owned\x07"))
	key := "key\x1b]52;c;AAAA\x07\u202e"
	failing, err := client.Submit(soon(t), millrace.Native("bench.fail"), millrace.Args("\x1b[2J"), millrace.WithKey(key))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := failing.Array(soon(t)); err == nil {
		t.Fatal("it succeeded")
	}
	space := "--namespace=" + namespace(t)
	for _, args := range [][]string{
		{"get", "tasks", space, "-o", "wide"}, {"get", "tasks", space}, {"get", "graphs", space, "-o", "wide"}, {"get", "clients"}, {"describe", "task", key, space}, {"explain", key, space}, {"memory"},
		{"get", "result", key, space},
		{"get", "result", "no\x1bsuch", space}, {"describe", "task", "no\x1bsuch", space}, {"explain", "no\x1bsuch", space}, {"describe", "worker", "no\x1bsuch"}, {"describe", "graph", "g999999"},
		{"wait", "g999999"}, {"cancel", "no\x1bsuch", space}, {"memory", "no\x1bsuch"},
	} {
		out, errs, _ := shared.command(t, "", args...)
		if strings.ContainsAny(out+errs, "\x1b\x07\u202e") || out+errs == "" {
			t.Errorf("millrace %q: %q %q", args, out, errs)
		}
		for _, service := range []string{"SchedulerService", "DataService"} {
			methods := millracev1.File_millrace_v1_scheduler_service_proto.Services().ByName("SchedulerService").Methods()
			if service == "DataService" {
				methods = millracev1.File_millrace_v1_data_service_proto.Services().ByName("DataService").Methods()
			}
			for i := range methods.Len() {
				if name := string(methods.Get(i).Name()); strings.Contains(errs, "see "+name) || strings.Contains(errs, name+" ") && len(name) > 8 {
					t.Errorf("millrace %q names the call %s: %s", args, name, errs)
				}
			}
		}
	}
	if out, _, code := shared.command(t, "", "get", "tasks", space, "-o", "json"); code != 0 || !strings.Contains(out, `key\u001b]52`) {
		t.Errorf("JSON: %s", out)
	}
}
