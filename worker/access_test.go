package worker_test

import (
	"testing"

	"github.com/millrace/millrace/internal/access"
	"github.com/millrace/millrace/internal/access/accesstest"
	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/workertest"
)

func TestEachCallIsForTheRolesOfTheTable(t *testing.T) {
	tokens := map[access.Role]string{}
	var accepted access.Tokens
	for _, role := range access.Roles() {
		tokens[role] = "of-" + string(role)
		if role != access.Worker {
			accepted = append(accepted, access.TokenOf(tokens[role], role))
		}
	}
	w := start(t, workertest.NewScheduler(t), func(c *worker.Config) { c.Token, c.Accept = tokens[access.Worker], accepted })
	made := accesstest.Walk(t, w.Registration.GetDataAddress(), tokens,
		"millrace.v1.DataService", "millrace.v1.ExecutorService", "millrace.worker.v1.PeerService",
		"grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
	if made != 13 {
		t.Errorf("%d calls were made", made)
	}
}
