package access_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/access"
)

// The walks through the services compare them with the table. These lists say what the table must
// be: what tasks and clients may never do to others, and all that readers may do.
func TestTasksAndReadersReachNothingOfOthers(t *testing.T) {
	operators := []string{
		"AddPeer", "Connect", "DrainWorkers", "FollowPlugins", "Rebalance", "RemovePeer", "ReportWorkerDeath", "RestartExecutors", "RestartWorkers", "RetireWorkers",
		"Session", "Shutdown",
	}
	refused := map[access.Role][]string{
		access.Client: operators,
		access.Task:   append([]string{"RegisterPlugin", "RunFunction", "UnregisterPlugin"}, operators...),
	}
	reads := []string{
		"Check", "DescribeExecutors", "DescribeMemory", "ExplainTask", "FollowLogs", "GetClusterInfo", "GetDataset", "GetEvent", "GetGraph", "GetMetadata", "GetProfile",
		"GetQueue", "GetReport", "GetResult", "GetSchedulerLog", "GetSemaphore", "GetTask", "GetTaskLogs", "GetTopic", "GetVariable", "GetWorker",
		"GetWorkerLog", "List", "ListAlarms", "ListClients", "ListDatasets", "ListEvents", "ListGraphs", "ListPeers", "ListPlugins", "ListTaskRuns", "ListTasks",
		"ListTopics", "ListWorkers", "LocateObjects", "ReadObjects", "ServerReflectionInfo", "Watch",
	}
	named := func(want bool, role access.Role) (names []string) {
		for _, line := range access.Table() {
			if name := line.Method[strings.LastIndex(line.Method, "/")+1:]; access.Allowed(role, line.Method) == want {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
	for role, want := range refused {
		slices.Sort(want)
		if got := named(false, role); !slices.Equal(got, want) {
			t.Errorf("role %s may not make the calls\n%q, want\n%q", role, got, want)
		}
	}
	if got := named(true, access.Reader); !slices.Equal(got, reads) {
		t.Errorf("readers may make the calls\n%q, want\n%q", got, reads)
	}
}
