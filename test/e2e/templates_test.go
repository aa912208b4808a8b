package e2e

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestGrpcurlTemplates makes the calls of docs/templates.md, as they stand there.
func TestGrpcurlTemplates(t *testing.T) {
	page, err := os.ReadFile("../../docs/templates.md")
	if err != nil {
		t.Fatal(err)
	}
	hash := ""
	var results []any
	calls := regexp.MustCompile(`(?s)grpcurl -plaintext -H "\$H" -d '(.*?)'[ \\\n]+\$A millrace\.v1\.SchedulerService/(\w+)`).FindAllStringSubmatch(string(page), -1)
	for _, call := range calls {
		data, method := strings.ReplaceAll(call[1], "'$HASH'", hash), call[2]
		answer := rpc(t, method, data)
		if hashes, _ := answer["templateHashes"].([]any); len(hashes) == 1 {
			hash, _ = hashes[0].(string)
		}
		if method == "GetResult" {
			results = append(results, answer["json"])
		}
		if answer["missingTemplates"] != nil {
			t.Errorf("%s: %v", data, answer)
		}
	}
	if len(calls) != 3 || len(results) != 1 || results[0] != 10.0 {
		t.Errorf("%d calls, results %v", len(calls), results)
	}
	if got := rpc(t, "GetResult", `{"task": {"key": "second-sum"}, "wait": "300s"}`); got["json"] != 570.0 {
		t.Errorf("the second submission: %v", got)
	}
	missing := rpc(t, "SubmitBatch", `{"header": {"namespace": "elsewhere"}, "templateInstances": [{"templateHash": "`+hash+`", "instances": [{"values": [{"intValue": "1"}], "inputs": ["two"]}]}]}`)
	if hashes, _ := missing["missingTemplates"].([]any); len(hashes) != 1 || hashes[0] != hash || missing["taskIds"] != nil {
		t.Errorf("in another namespace: %v", missing)
	}
}
