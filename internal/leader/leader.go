// Package leader is an Adapter: it is about several schedulers that look like one. One of them
// leads; the others refuse all calls and name it.
package leader

import (
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Reason is the reason of the refusals of a scheduler that does not lead.
const Reason = "NOT_LEADER"

const (
	// PingAfter is the silence of a connection to a scheduler after which workers ask for a sign of
	// life.
	PingAfter = 10 * time.Second
	// PingTimeout is the time that the sign may take.
	PingTimeout = 5 * time.Second
	// HangTime is how long a worker may stay with a leader that hangs: the machine of it has lost
	// its power, or its process was stopped. Nobody closes the connection then.
	HangTime = PingAfter + PingTimeout

	// starting is the reason of the refusals of a scheduler that reads its journal.
	starting = "SCHEDULER_STARTING"
	// domain is that of every ErrorInfo.
	domain = "millrace.dev"
	// named is the name of the leader's address in the metadata of a refusal.
	named = "leader"
)

// Refusal returns the answer of a scheduler that does not lead to any call. It has not begun the
// call. A call that only reads may have been carried out, and a stream may end with it: call or
// watch again. address is the leader's "host:port"; empty: there is no leader now.
func Refusal(address string) error {
	message := "this scheduler does not lead, and there is no leader now: try again"
	if address != "" {
		message = "this scheduler does not lead: call the one at " + address + ", or give clients the addresses of all schedulers, with commas between them"
	}
	plain := status.New(codes.Unavailable, message)
	detailed, err := plain.WithDetails(&errdetails.ErrorInfo{Reason: Reason, Domain: domain, Metadata: map[string]string{named: address}})
	if err != nil {
		return plain.Err()
	}
	return detailed.Err()
}

// Refused reports whether an error is a Refusal, and returns the address of its leader; empty:
// there is none.
func Refused(err error) (address string, refused bool) {
	info := refusal(err)
	if info.GetReason() != Reason {
		return "", false
	}
	return info.GetMetadata()[named], true
}

// elsewhere reports whether a scheduler has not begun a call that another one may answer, and
// returns the address of that one, if the scheduler has named it.
func elsewhere(err error) (address string, refused bool) {
	if refusal(err).GetReason() == starting {
		return "", true
	}
	return Refused(err)
}

// refusal returns the details of an UNAVAILABLE of ours; nil: there are none.
func refusal(err error) *errdetails.ErrorInfo {
	s, _ := status.FromError(err)
	if s.Code() != codes.Unavailable {
		return nil
	}
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == domain {
			return info
		}
	}
	return nil
}
