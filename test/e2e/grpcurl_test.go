package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// grpcurlPath returns the pinned grpcurl: GRPCURL, else the one that `make` built.
func grpcurlPath(t *testing.T) string {
	t.Helper()
	if p := os.Getenv("GRPCURL"); p != "" {
		return p
	}
	p, err := filepath.Abs("../../.tools/bin/grpcurl")
	if err == nil {
		_, err = os.Stat(p)
	}
	if err != nil {
		t.Fatalf("no grpcurl: %v; run `make e2e`, or `make .tools/bin/grpcurl` once", err)
	}
	return p
}

// grpcurl calls the scheduler without any .proto file, and returns the output.
func grpcurl(t *testing.T, data string, args ...string) string {
	t.Helper()
	return grpcurlTo(t, shared.Address, data, args...)
}

// grpcurlTo is grpcurl for any address of the cluster.
func grpcurlTo(t *testing.T, address, data string, args ...string) string {
	t.Helper()
	all := []string{"-plaintext", "-max-time", fmt.Sprint(eventTimeout.Seconds()), "-H", "authorization: Bearer " + shared.Token}
	if data != "" {
		all = append(all, "-d", data)
	}
	cmd := exec.CommandContext(soon(t), grpcurlPath(t), append(append(all, address), args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("grpcurl %s: %v\n%s%s", strings.Join(args, " "), err, out.String(), errs.String())
	}
	return out.String()
}

func rpc(t *testing.T, method, data string) map[string]any {
	t.Helper()
	return decode(t, grpcurl(t, data, "millrace.v1.SchedulerService/"+method))
}

// TestGrpcurl is an operator's session that uses reflection only.
func TestGrpcurl(t *testing.T) {
	if out := grpcurl(t, "", "list"); !strings.Contains(out, "millrace.v1.SchedulerService") || !strings.Contains(out, "grpc.health.v1.Health") {
		t.Errorf("list: %s", out)
	}
	if out := grpcurl(t, "", "describe", "millrace.v1.SchedulerService.SubmitBatch"); !strings.Contains(out, "SubmitRequest") {
		t.Errorf("describe: %s", out)
	}
	if out := grpcurl(t, "", "describe", "millrace.v1.TaskSpec"); !strings.Contains(out, "packed_arguments") {
		t.Errorf("describe: %s", out)
	}

	submitted := rpc(t, "SubmitBatch", `{"header": {"name": "by hand", "namespace": "TestGrpcurl"}, "tasks": [
		{"key": "a", "op": "array.arange", "arguments": {"positional": [{"intValue": "0"}, {"intValue": "6"}, {"intValue": "1"}]}},
		{"key": "m", "op": "array.map", "inputs": ["a"], "arguments": {"positional": [{"stringValue": "x0*x0"}, {"input": 0}]}},
		{"key": "s", "op": "array.reduce", "inputs": ["m"], "arguments": {"positional": [{"input": 0}], "named": {"op": {"stringValue": "sum"}}}}]}`)
	graph, _ := submitted["graphId"].(string)
	if ids, _ := submitted["taskIds"].([]any); len(ids) != 3 || graph == "" {
		t.Fatalf("SubmitBatch: %v", submitted)
	}
	result := rpc(t, "GetResult", `{"task": {"key": "s", "namespace": "TestGrpcurl"}, "wait": "300s"}`)
	if got := result["json"]; got != 55.0 {
		t.Errorf("sum of squares: %v", result)
	}
	result = rpc(t, "GetResult", `{"task": {"key": "m", "namespace": "TestGrpcurl"}, "wait": "300s"}`)
	if got, _ := result["json"].([]any); !slices.Equal(got, []any{0.0, 1.0, 4.0, 9.0, 16.0, 25.0}) {
		t.Errorf("squares: %v", result)
	}

	rpc(t, "SubmitBatch", `{"header": {"namespace": "TestGrpcurl"}, "tasks": [
		{"key": "l", "op": "core.list", "inputs": ["a", "m"], "arguments": {"positional": [{"input": 0}, {"input": 1}, {"intValue": "7"}]}},
		{"key": "i", "op": "array.reduce", "inputs": ["l"], "items": [{"input": 0, "item": 1, "count": 3}],
			"arguments": {"positional": [{"input": 0}], "named": {"op": {"stringValue": "sum"}}}}]}`)
	result = rpc(t, "GetResult", `{"task": {"key": "i", "namespace": "TestGrpcurl"}, "wait": "300s"}`)
	if got := result["json"]; got != 55.0 {
		t.Errorf("sum of an item: %v", result)
	}

	// Watch prints one JSON object after the other, and ends with the graph.
	watched := json.NewDecoder(strings.NewReader(grpcurl(t, `{"graphIds": ["`+graph+`"], "untilEnded": true}`, "millrace.v1.SchedulerService/Watch")))
	state := any("")
	for {
		var batch map[string]any
		if err := watched.Decode(&batch); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if s := dig(batch, "graphs", 0, "state"); s != nil {
			state = s
		}
	}
	if state != "GRAPH_STATE_SUCCEEDED" {
		t.Errorf("watch ended with state %v", state)
	}

	rpc(t, "SubmitBatch", `{"header": {"namespace": "TestGrpcurl"}, "options": [{"resources": {"license": 1}}],
		"tasks": [{"key": "blocked", "op": "bench.noop", "optionsIndex": 1}]}`)
	why := rpc(t, "ExplainTask", `{"task": {"key": "blocked", "namespace": "TestGrpcurl"}}`)
	text, _ := why["explanation"].(string)
	if why["status"] != "TASK_STATUS_NO_WORKER_FITS" || !strings.Contains(text, "license") {
		t.Errorf("explain: %v", why)
	}
	if reason, _ := dig(why, "workers", 0, "reason").(string); !strings.Contains(reason, "license") {
		t.Errorf("verdicts: %v", why["workers"])
	}
	rpc(t, "CancelTasks", `{"tasks": {"keys": ["blocked"], "namespace": "TestGrpcurl"}}`)

	first := rpc(t, "ListWorkers", `{"pageSize": 1}`)
	token, _ := first["nextPageToken"].(string)
	if list, _ := first["workers"].([]any); len(list) != 1 || token == "" {
		t.Fatalf("first page of workers: %v", first)
	}
	second := rpc(t, "ListWorkers", `{"pageSize": 1, "pageToken": "`+token+`"}`)
	if list, _ := second["workers"].([]any); len(list) != 1 || second["nextPageToken"] != nil || dig(second, "workers", 0, "name") == dig(first, "workers", 0, "name") {
		t.Errorf("second page of workers: %v", second)
	}
	name, _ := dig(first, "workers", 0, "name").(string)
	if one := rpc(t, "GetWorker", `{"worker": {"name": "`+name+`"}}`); dig(one, "worker", "workerId") != dig(first, "workers", 0, "workerId") {
		t.Errorf("the worker by name: %v", one)
	}

	// The data port of a worker describes itself, too.
	address, _ := dig(first, "workers", 0, "dataAddress").(string)
	if out := grpcurlTo(t, address, "", "list"); !strings.Contains(out, "millrace.v1.DataService") {
		t.Errorf("list at a worker: %s", out)
	}
	if memory := decode(t, grpcurlTo(t, address, "{}", "millrace.v1.DataService/DescribeMemory")); len(memory) == 0 {
		t.Error("DescribeMemory is empty")
	}
}
