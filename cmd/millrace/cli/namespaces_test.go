package cli

import (
	"maps"
	"testing"

	"github.com/millrace/millrace/server/sched"
)

func TestLimitsOfNamespacesAreRead(t *testing.T) {
	got, err := namespaceLimits([]string{"a=3", "b=0.5"}, []string{"*=1000", "a=5"}, []string{"b=1MiB"})
	want := map[string]sched.NamespaceLimits{"a": {Weight: 3, Tasks: 5}, "b": {Weight: 0.5, Tasks: 1000, Bytes: 1 << 20}, "*": {Tasks: 1000}}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	for setting, texts := range map[string][]string{
		"namespace-weight": {"a", "=3", "a=", "a=0", "a=-1", "a=1001", "a=NaN", "a=3,b"},
		"namespace-tasks":  {"a=0", "a=1.5", "a=many"},
		"namespace-memory": {"a=0", "a=lots"},
	} {
		for _, text := range texts {
			if err := checks[setting](text); err == nil {
				t.Errorf("--%s %s is accepted", setting, text)
			}
		}
	}
	for setting, text := range map[string]string{"namespace-weight": "[a=3,b=0.5]", "namespace-tasks": "*=100", "namespace-memory": ""} {
		if err := checks[setting](text); err != nil {
			t.Errorf("--%s %s: %v", setting, text, err)
		}
	}
}
