package access_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "github.com/millrace/millrace/gen/go/millrace/executor/v1"
	_ "github.com/millrace/millrace/gen/go/millrace/host/v1"
	"github.com/millrace/millrace/internal/access"
)

// calls returns all calls of the API, with their requests.
func calls() map[string]protoreflect.MessageDescriptor {
	found := map[string]protoreflect.MessageDescriptor{}
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				method := service.Methods().Get(j)
				found["/"+string(service.FullName())+"/"+string(method.Name())] = method.Input()
			}
		}
		return true
	})
	return found
}

// has reports whether a request has a field, also in its header or its set of tasks.
func has(request protoreflect.MessageDescriptor, field protoreflect.Name) bool {
	if request.Fields().ByName(field) != nil {
		return true
	}
	for _, part := range []protoreflect.Name{"header", "tasks"} {
		if f := request.Fields().ByName(part); f != nil && f.Message() != nil && f.Message().Fields().ByName(field) != nil {
			return true
		}
	}
	return false
}

func TestEachCallHasOneLine(t *testing.T) {
	all := calls()
	seen := map[string]bool{}
	for _, line := range access.Table() {
		if all[line.Method] == nil {
			t.Errorf("%s is in the table and in no .proto file", line.Method)
		}
		if seen[line.Method] {
			t.Errorf("%s has two lines", line.Method)
		}
		seen[line.Method] = true
		if len(line.Roles) == 0 {
			t.Errorf("%s is for nobody", line.Method)
		}
	}
	for method := range all {
		if !seen[method] {
			t.Errorf("%s is not in the table: decide which roles may call it", method)
		}
	}
	if len(all) < 70 {
		t.Errorf("the walk finds only %d calls", len(all))
	}
}

func TestBoundsAreThoseOfTheRequests(t *testing.T) {
	for method, request := range calls() {
		if !strings.HasPrefix(method, "/millrace.") {
			continue
		}
		i := slices.IndexFunc(access.Table(), func(line access.Right) bool { return line.Method == method })
		if i < 0 {
			continue // TestEachCallHasOneLine reports it.
		}
		client, namespace := has(request, "client_id"), has(request, "namespace")
		// These filter by a client, or follow it, beside what they do in all namespaces.
		client = client && request.Name() != "ListGraphsRequest" && request.Name() != "WatchRequest"
		bound := access.Table()[i].Bound
		if want := bound == access.Lease || bound == access.LeaseOrField; want != client {
			t.Errorf("%s: bound %d, and the request has a client: %v", method, bound, client)
		}
		if bound == access.LeaseOrField && !namespace || bound == access.Field && !namespace || bound == access.Cluster && namespace {
			t.Errorf("%s: bound %d, and the request has a namespace: %v", method, bound, namespace)
		}
	}
}

func TestNobodyMayMakeACallThatIsNotListed(t *testing.T) {
	for _, role := range access.Roles() {
		if access.Allowed(role, "/millrace.v1.SchedulerService/Nothing") {
			t.Errorf("role %s may", role)
		}
	}
}

func TestATokenIsKnownByItsSum(t *testing.T) {
	tokens := access.Tokens{access.TokenOf("a", access.Task), access.TokenOf("b", access.Reader)}
	a, known := tokens.Find("a")
	if again, _ := tokens.Find("a"); !known || a.Role != access.Task || again != a {
		t.Errorf("%v, %v", a, known)
	}
	if b, _ := tokens.Find("b"); b.Owns(a.Token) || !a.Owns(a.Token) || !access.Nobody.Owns(a.Token) {
		t.Errorf("%v owns what %v does", b, a)
	}
	if _, known := tokens.Find(""); known {
		t.Error("the empty token is known")
	}
}
