package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestOpsNeedNoCluster(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("MILLRACE_SCHEDULER_FILE", "")
	t.Setenv("MILLRACE_ADDRESS", "")
	get := func(args ...string) (string, error) {
		var out bytes.Buffer
		a := &app{out: &out, err: io.Discard}
		root := a.root()
		root.SetArgs(append([]string{"get"}, args...))
		err := root.ExecuteContext(t.Context())
		return out.String(), err
	}
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"ops"}, []string{"NAME ", "array.arange ", "GPU  ", "Waits for a time"}},
		{[]string{"ops", "-o", "wide"}, []string{"CALL ", "array.concat(*xs, axis=0) ", "cusolver,cublas,nvrtc"}},
		{[]string{"ops", "bench.sleep", "core.item"}, []string{"bench.sleep(seconds)\n", "\n\ncore.item(x, index)\n", "\nExample:\n"}},
	} {
		text, err := get(c.args...)
		if err != nil {
			t.Errorf("%v: %v", c.args, err)
		}
		for _, part := range c.want {
			if !strings.Contains(text, part) {
				t.Errorf("%v: nowhere %q\n%s", c.args, part, text)
			}
		}
	}
	for format, decode := range map[string]func([]byte, any) error{
		"json": json.Unmarshal,
		"yaml": func(text []byte, to any) error { return yaml.Unmarshal(text, to) },
	} {
		for _, names := range [][]string{nil, {"array.map"}} {
			text, err := get(append(append([]string{"ops"}, names...), "-o", format)...)
			if err != nil {
				t.Fatal(err)
			}
			var list struct {
				Ops []struct{ Name, Doc, Signature string }
			}
			if err := decode([]byte(text), &list); err != nil {
				t.Fatal(err)
			}
			if len(names) == 1 && (len(list.Ops) != 1 || list.Ops[0].Name != names[0]) || len(names) == 0 && len(list.Ops) < 20 {
				t.Errorf("%s of %v: %v", format, names, list.Ops)
			}
		}
	}
	if _, err := get("ops", "array.mamtul"); exitCode(err) != exitNotFound || !strings.Contains(errorText(err), "get ops: array.mamtul: no such operation: did you mean array.matmul?") {
		t.Errorf("an unknown operation: %v", err)
	}
	if _, err := get("ops", "-o", "markdown"); exitCode(err) != exitUsage {
		t.Errorf("an unknown format: %v", err)
	}
}
