package rpc

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/access"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/schedapi"
)

// checkCaller refuses what a request says beyond its method: a client that another token has
// opened, and in a reader's request a client, a wait or a request id.
func checkCaller(ctx context.Context, message any, owner func(ids.ClientID) (string, bool)) error {
	caller := access.Caller(ctx)
	if caller.Role == access.Operator {
		return nil
	}
	client := clientOf(message)
	if caller.Role == access.Reader {
		if field := readersField(message, client); field != "" {
			return &schedapi.Error{Kind: schedapi.ErrPermissionDenied, Object: field, Message: fmt.Sprintf(
				"%s: a token of role %q may not set it: such calls wait, compute, or act for a client; leave it out, and call again later", field, caller.Role),
				Metadata: map[string]string{"role": string(caller.Role)}}
		}
	}
	if client == 0 {
		return nil
	}
	if opener, known := owner(client); known && !caller.Owns(opener) {
		return &schedapi.Error{Kind: schedapi.ErrPermissionDenied, Object: "client_id", Message: fmt.Sprintf(
			"client_id: client %d was opened with another token, and only that one or the operator's may act in its name: open a client of your own", client),
			Metadata: map[string]string{"role": string(caller.Role)}}
	}
	return nil
}

// clientOf returns the client in whose name a request is made; 0: none.
func clientOf(message any) ids.ClientID {
	switch m := message.(type) {
	case *pb.ListGraphsRequest: // its client_id is a filter
	case *pb.SubmitRequest:
		return ids.ClientID(m.GetHeader().GetClientId())
	case interface{ GetClientId() uint64 }:
		return ids.ClientID(m.GetClientId())
	}
	return 0
}

// readersField returns the name of a field that readers may not set; empty: none is set.
func readersField(message any, client ids.ClientID) string {
	if client != 0 {
		return "client_id"
	}
	if m, ok := message.(interface{ GetWait() *durationpb.Duration }); ok && m.GetWait() != nil {
		return "wait"
	}
	if m, ok := message.(interface{ GetRequestId() string }); ok && m.GetRequestId() != "" {
		return "request_id"
	}
	return ""
}

// shownClient returns the number by which a caller sees a client in lists. The number of a lease
// gives the right to act in its name. So only operators see it, and others see a number that is
// computed from it, and from which it cannot be computed.
func shownClient(ctx context.Context, id ids.ClientID) uint64 {
	if id == 0 || access.Caller(ctx).Role == access.Operator {
		return uint64(id)
	}
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte("millrace: client "), uint64(id)))
	return binary.BigEndian.Uint64(sum[:])>>1 | 1
}

// shownClients returns a page of clients after one with a shown number, ordered by these numbers.
func shownClients(ctx context.Context, clients []*schedapi.Client, after uint64, limit int) (rows []*pb.Client, more bool) {
	for _, c := range clients {
		row := clientTo(c)
		if row.ClientId = shownClient(ctx, c.ID); row.GetClientId() > after {
			rows = append(rows, row)
		}
	}
	slices.SortFunc(rows, func(a, b *pb.Client) int { return cmp.Compare(a.GetClientId(), b.GetClientId()) })
	return rows[:min(limit, len(rows))], len(rows) > limit
}
