package access

import (
	"slices"

	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1alpha"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
)

// Bound says what bounds the namespaces in which a call acts. No token is bound to namespaces yet:
// only a lease is.
type Bound uint8

const (
	// Cluster: the call acts on the cluster or on a worker. It has no namespace.
	Cluster Bound = iota + 1
	// Lease: the call acts in the namespace of a client, which its client_id names.
	Lease
	// LeaseOrField: like Lease. Without a client_id, the request names the namespace: any one.
	LeaseOrField
	// Field: the request names the namespace, any one.
	Field
	// Everywhere: the request names tasks, graphs or clients of any namespace by their numbers, or
	// lists those of all namespaces.
	Everywhere
)

// Right is the line of one call in the table.
type Right struct {
	// Method is the full name of the call: "/package.Service/Call".
	Method string
	// Roles are those that may make it. Open: it needs no token.
	Roles []Role
	Open  bool
	Bound Bound
}

// Groups of roles.
var (
	operators = []Role{Operator}
	clients   = []Role{Operator, Client}
	users     = []Role{Operator, Client, Task}
	readers   = []Role{Operator, Client, Task, Reader}
	workers   = []Role{Operator, Worker}
	peers     = []Role{Worker}
	bearers   = Roles()
)

// table has one line for each call of each service.
var table = []Right{
	// The scheduler: leases of clients.
	{Method: pb.SchedulerService_OpenClient_FullMethodName, Roles: users, Bound: Field},
	{Method: pb.SchedulerService_RenewClient_FullMethodName, Roles: users, Bound: Lease},
	{Method: pb.SchedulerService_CloseClient_FullMethodName, Roles: users, Bound: Lease},
	{Method: pb.SchedulerService_ListClients_FullMethodName, Roles: readers, Bound: Everywhere},

	// The scheduler: tasks and graphs.
	{Method: pb.SchedulerService_Submit_FullMethodName, Roles: users, Bound: LeaseOrField},
	{Method: pb.SchedulerService_SubmitBatch_FullMethodName, Roles: users, Bound: LeaseOrField},
	{Method: pb.SchedulerService_Watch_FullMethodName, Roles: readers, Bound: Everywhere},
	{Method: pb.SchedulerService_HoldTasks_FullMethodName, Roles: users, Bound: Lease},
	{Method: pb.SchedulerService_ReleaseTasks_FullMethodName, Roles: users, Bound: Lease},
	{Method: pb.SchedulerService_CancelTasks_FullMethodName, Roles: users, Bound: LeaseOrField},
	{Method: pb.SchedulerService_RetryTasks_FullMethodName, Roles: users, Bound: LeaseOrField},
	{Method: pb.SchedulerService_GetGraph_FullMethodName, Roles: readers, Bound: Everywhere},
	{Method: pb.SchedulerService_ListGraphs_FullMethodName, Roles: readers, Bound: Everywhere},
	{Method: pb.SchedulerService_ReleaseGraph_FullMethodName, Roles: users, Bound: Everywhere},
	{Method: pb.SchedulerService_GetTask_FullMethodName, Roles: readers, Bound: Everywhere},
	{Method: pb.SchedulerService_ListTasks_FullMethodName, Roles: readers, Bound: Everywhere},
	{Method: pb.SchedulerService_ListTaskRuns_FullMethodName, Roles: readers, Bound: Everywhere},
	{Method: pb.SchedulerService_ExplainTask_FullMethodName, Roles: readers, Bound: Everywhere},
	{Method: pb.SchedulerService_GetResult_FullMethodName, Roles: readers, Bound: Everywhere},
	{Method: pb.SchedulerService_LocateObjects_FullMethodName, Roles: readers, Bound: Everywhere},

	// The scheduler: datasets.
	{Method: pb.SchedulerService_PublishDataset_FullMethodName, Roles: users, Bound: LeaseOrField},
	{Method: pb.SchedulerService_GetDataset_FullMethodName, Roles: readers, Bound: Field},
	{Method: pb.SchedulerService_ListDatasets_FullMethodName, Roles: readers, Bound: Everywhere},
	{Method: pb.SchedulerService_UnpublishDataset_FullMethodName, Roles: users, Bound: Field},

	// The scheduler: the cluster.
	{Method: pb.SchedulerService_GetWorker_FullMethodName, Roles: readers, Bound: Cluster},
	{Method: pb.SchedulerService_ListWorkers_FullMethodName, Roles: readers, Bound: Cluster},
	{Method: pb.SchedulerService_GetClusterInfo_FullMethodName, Roles: readers, Bound: Cluster},
	{Method: pb.SchedulerService_GetSchedulerLog_FullMethodName, Roles: readers, Bound: Cluster},
	{Method: pb.SchedulerService_GetReport_FullMethodName, Roles: readers, Bound: Everywhere},
	{Method: pb.SchedulerService_ListPeers_FullMethodName, Roles: readers, Bound: Cluster},
	{Method: pb.SchedulerService_AddPeer_FullMethodName, Roles: operators, Bound: Cluster},
	{Method: pb.SchedulerService_RemovePeer_FullMethodName, Roles: operators, Bound: Cluster},
	{Method: pb.SchedulerService_ListAlarms_FullMethodName, Roles: readers, Bound: Cluster},
	{Method: pb.SchedulerService_ListEvents_FullMethodName, Roles: readers, Bound: Everywhere},
	{Method: pb.SchedulerService_DrainWorkers_FullMethodName, Roles: operators, Bound: Cluster},
	{Method: pb.SchedulerService_RetireWorkers_FullMethodName, Roles: operators, Bound: Cluster},
	{Method: pb.SchedulerService_RestartWorkers_FullMethodName, Roles: operators, Bound: Cluster},
	{Method: pb.SchedulerService_Rebalance_FullMethodName, Roles: operators, Bound: Cluster},
	{Method: pb.SchedulerService_Shutdown_FullMethodName, Roles: operators, Bound: Cluster},

	// The scheduler: what clients share.
	{Method: pb.CoordinationService_Acquire_FullMethodName, Roles: users, Bound: Lease},
	{Method: pb.CoordinationService_Release_FullMethodName, Roles: users, Bound: Lease},
	{Method: pb.CoordinationService_GetSemaphore_FullMethodName, Roles: readers, Bound: LeaseOrField},
	{Method: pb.CoordinationService_CloseSemaphore_FullMethodName, Roles: users, Bound: LeaseOrField},
	{Method: pb.CoordinationService_SetVariable_FullMethodName, Roles: users, Bound: LeaseOrField},
	{Method: pb.CoordinationService_GetVariable_FullMethodName, Roles: readers, Bound: LeaseOrField},
	{Method: pb.CoordinationService_DeleteVariable_FullMethodName, Roles: users, Bound: LeaseOrField},
	{Method: pb.CoordinationService_SetEvent_FullMethodName, Roles: users, Bound: LeaseOrField},
	{Method: pb.CoordinationService_GetEvent_FullMethodName, Roles: readers, Bound: LeaseOrField},
	{Method: pb.CoordinationService_OpenQueue_FullMethodName, Roles: users, Bound: LeaseOrField},
	{Method: pb.CoordinationService_PutInQueue_FullMethodName, Roles: users, Bound: LeaseOrField},
	{Method: pb.CoordinationService_TakeFromQueue_FullMethodName, Roles: users, Bound: LeaseOrField},
	{Method: pb.CoordinationService_GetQueue_FullMethodName, Roles: readers, Bound: LeaseOrField},
	{Method: pb.CoordinationService_CloseQueue_FullMethodName, Roles: users, Bound: LeaseOrField},
	{Method: pb.CoordinationService_PublishToTopic_FullMethodName, Roles: users, Bound: LeaseOrField},
	{Method: pb.CoordinationService_GetTopic_FullMethodName, Roles: readers, Bound: LeaseOrField},
	{Method: pb.CoordinationService_ListTopics_FullMethodName, Roles: readers, Bound: LeaseOrField},
	{Method: pb.CoordinationService_SetMetadata_FullMethodName, Roles: users, Bound: LeaseOrField},
	{Method: pb.CoordinationService_GetMetadata_FullMethodName, Roles: readers, Bound: LeaseOrField},
	{Method: pb.CoordinationService_Withdraw_FullMethodName, Roles: users, Bound: Lease},
	{Method: pb.CoordinationService_Acknowledge_FullMethodName, Roles: users, Bound: Lease},

	// The scheduler: functions that run in all executors. Tasks may not plant them.
	{Method: pb.PluginService_RegisterPlugin_FullMethodName, Roles: clients, Bound: Cluster},
	{Method: pb.PluginService_UnregisterPlugin_FullMethodName, Roles: clients, Bound: Cluster},
	{Method: pb.PluginService_ListPlugins_FullMethodName, Roles: readers, Bound: Cluster},

	// The scheduler: workers and their supervisors.
	{Method: workerv1.WorkerService_Session_FullMethodName, Roles: workers, Bound: Cluster},
	{Method: workerv1.WorkerService_ReportWorkerDeath_FullMethodName, Roles: workers, Bound: Cluster},
	{Method: workerv1.PluginOrderService_FollowPlugins_FullMethodName, Roles: workers, Bound: Cluster},

	// The workers: objects, memory and logs.
	{Method: pb.DataService_ReadObjects_FullMethodName, Roles: bearers, Bound: Everywhere},
	{Method: pb.DataService_WriteObject_FullMethodName, Roles: users, Bound: Everywhere},
	{Method: pb.DataService_DescribeMemory_FullMethodName, Roles: readers, Bound: Everywhere},
	{Method: pb.DataService_GetTaskLogs_FullMethodName, Roles: readers, Bound: Everywhere},
	{Method: pb.DataService_FollowLogs_FullMethodName, Roles: readers, Bound: Field},
	{Method: pb.DataService_GetWorkerLog_FullMethodName, Roles: readers, Bound: Cluster},

	// The workers: their executors. As with plugins, tasks may not reach those of others.
	{Method: pb.ExecutorService_RunFunction_FullMethodName, Roles: clients, Bound: Cluster},
	{Method: pb.ExecutorService_RestartExecutors_FullMethodName, Roles: operators, Bound: Cluster},
	{Method: pb.ExecutorService_GetProfile_FullMethodName, Roles: readers, Bound: Cluster},
	{Method: pb.ExecutorService_DescribeExecutors_FullMethodName, Roles: readers, Bound: Everywhere},

	// The workers: other workers. Such a connection reaches all memory of a worker.
	{Method: workerv1.PeerService_Connect_FullMethodName, Roles: peers, Bound: Cluster},

	// All servers. Load balancers have no tokens.
	{Method: grpc_health_v1.Health_Check_FullMethodName, Roles: bearers, Open: true, Bound: Cluster},
	{Method: grpc_health_v1.Health_List_FullMethodName, Roles: bearers, Open: true, Bound: Cluster},
	{Method: grpc_health_v1.Health_Watch_FullMethodName, Roles: bearers, Open: true, Bound: Cluster},
	{Method: grpc_reflection_v1.ServerReflection_ServerReflectionInfo_FullMethodName, Roles: bearers, Bound: Cluster},
	{Method: grpc_reflection_v1alpha.ServerReflection_ServerReflectionInfo_FullMethodName, Roles: bearers, Bound: Cluster},
}

var byMethod = func() map[string]*Right {
	lines := make(map[string]*Right, len(table))
	for i := range table {
		lines[table[i].Method] = &table[i]
	}
	return lines
}()

// Table returns a copy of the table.
func Table() []Right { return slices.Clone(table) }

// Listed reports whether a call is in the table.
func Listed(method string) bool { return byMethod[method] != nil }

// Open reports whether a call needs no token.
func Open(method string) bool {
	line := byMethod[method]
	return line != nil && line.Open
}

// Allowed reports whether a role may make a call. Nobody may make one that is not in the table.
func Allowed(role Role, method string) bool {
	line := byMethod[method]
	return line != nil && slices.Contains(line.Roles, role)
}
