package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	millrace "github.com/millrace/millrace/clients/go"
)

// TestGrpcurlCoordinates makes the calls of docs/client-authors.md by reflection.
func TestGrpcurlCoordinates(t *testing.T) {
	call := func(method, data string) map[string]any {
		t.Helper()
		return decode(t, grpcurl(t, data, "millrace.v1.CoordinationService/"+method))
	}
	opened := rpc(t, "OpenClient", `{"name": "by hand", "leaseTtl": "600s"}`)
	client, _ := opened["client"].(map[string]any)
	id, _ := client["clientId"].(string)
	call("SetVariable", `{"name":"step","value":{"value":{"intValue":"3"}}}`)
	if got := fmt.Sprint(call("GetVariable", `{"name":"step","wait":"10s"}`)); !strings.Contains(got, "intValue:3") {
		t.Errorf("GetVariable: %s", got)
	}
	if got := call("Acquire", `{"clientId":"`+id+`","names":["disk"],"wait":"60s"}`); got["acquired"] != true {
		t.Errorf("Acquire: %v", got)
	}
	if got := fmt.Sprint(call("GetSemaphore", `{"name":"disk"}`)); !strings.Contains(got, id) {
		t.Errorf("GetSemaphore: %s", got)
	}
	call("Release", `{"clientId":"`+id+`","names":["disk"]}`)
	call("PutInQueue", `{"name":"q","value":{"value":{"stringValue":"x"}}}`)
	if got := fmt.Sprint(call("TakeFromQueue", `{"name":"q","most":10}`)); !strings.Contains(got, "stringValue:x") {
		t.Errorf("TakeFromQueue: %s", got)
	}
	call("SetMetadata", `{"path":["a"],"value":{"mapValue":{"fields":{"b":{"boolValue":true}}}}}`)
	if got := fmt.Sprint(call("GetMetadata", `{"path":["a","b"]}`)); !strings.Contains(got, "boolValue:true") {
		t.Errorf("GetMetadata: %s", got)
	}
	rpc(t, "CloseClient", `{"clientId":"`+id+`"}`)
}

// A lock that was held when the scheduler was killed is lost, and its holder is told. A call that
// waited goes on at the next scheduler.
func TestALockIsLostWithTheScheduler(t *testing.T) {
	address := fixedAddress(t)
	start := func() *started {
		t.Helper()
		s := background(t, []string{"MILLRACE_TOKEN=t0ken"}, "scheduler", "--listen", address, "--http", "")
		within(t, "the scheduler is ready", func() bool { return strings.Contains(s.log.String(), "\nready") })
		return s
	}
	scheduler := start()
	dial := func() *millrace.Client {
		t.Helper()
		c, err := millrace.Dial(soon(t), millrace.WithAddress(address), millrace.WithToken("t0ken"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() }) // its scheduler may be gone
		return c
	}
	held := dial().Lock("x")
	if err := held.Acquire(soon(t)); err != nil {
		t.Fatal(err)
	}
	if err := scheduler.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-scheduler.ended
	start()
	next := dial().Lock("x")
	if err := next.Acquire(soon(t)); err != nil {
		t.Fatal(err)
	}
	err := held.Release(soon(t))
	if !errors.Is(err, millrace.ErrNotHeld) || !strings.Contains(err.Error(), "others may have") {
		t.Errorf("the release of a lock that was lost: %v", err)
	}
	if err := next.Release(soon(t)); err != nil {
		t.Error(err)
	}
}
