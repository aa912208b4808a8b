// Package edge is an Adapter: the common interceptors of all our gRPC servers. Requests are checked
// against the rules in the protos. Statuses get a reason and fit into the trailers of a call.
package edge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"buf.build/go/protovalidate"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/millrace/millrace/internal/text"
)

// Domain is the domain of every ErrorInfo.
const Domain = "millrace.dev"

// Refusal returns a gRPC error with a reason, which clients match on, and a message for people.
func Refusal(code codes.Code, reason, message string, metadata map[string]string) error {
	plain := status.New(code, message)
	detailed, err := plain.WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: Domain, Metadata: metadata})
	if err != nil {
		return plain.Err()
	}
	return detailed.Err()
}

// InvalidField returns INVALID_FIELD with the field's name, for a request that breaks a rule.
func InvalidField(field, message string) error {
	return Refusal(codes.InvalidArgument, "INVALID_FIELD", field+": "+message, map[string]string{"object": field})
}

const (
	// trailerBytes bounds the size of a status in the trailers of a call, in bytes. Some clients
	// refuse longer trailers, and then the error is lost.
	trailerBytes = 8 << 10
	// messageBytes bounds the message of a status, and metadataSum the names and values of the
	// metadata of its ErrorInfo together. Both are in bytes.
	messageBytes = 4 << 10
	metadataSum  = 2 << 10
)

// MetadataBytes bounds one metadata value of an ErrorInfo, in bytes.
const MetadataBytes = 1 << 10

// Fit returns the status of an error, with its texts cut so that its trailers can be sent; nil
// stays nil. A status without an ErrorInfo gets one with the general reason of its code, if there
// is one. Details that are too large are left out.
func Fit(err error) error {
	if err == nil {
		return nil
	}
	s := statusOf(err)
	p := s.Proto()
	var details []proto.Message
	explained := false
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			details = append(details, shortInfo(info))
			explained = true
		} else if other, ok := detail.(proto.Message); ok {
			details = append(details, other)
		}
	}
	if reason := generalReason(s.Code()); !explained && reason != "" {
		details = append(details, &errdetails.ErrorInfo{Reason: reason, Domain: Domain})
	}
	p.Details = nil
	for _, detail := range details {
		if packed, err := anypb.New(detail); err == nil && proto.Size(packed) < trailerBytes/2 {
			p.Details = append(p.Details, packed)
		}
	}
	whole := p.GetMessage()
	for limit := messageBytes; ; limit -= limit / 8 {
		p.Message = text.Middle(whole, limit)
		// The message is sent twice: with % escapes for non-ASCII bytes, and in base64 with the
		// details.
		if percentLength(p.GetMessage())+proto.Size(p)*4/3 < trailerBytes || limit < MetadataBytes/4 {
			return status.FromProto(p).Err()
		}
	}
}

// statusOf returns the status of an error. An error without a status is CANCELLED or
// DEADLINE_EXCEEDED if it comes from a context, and otherwise INTERNAL: our code did not give one.
func statusOf(err error) *status.Status {
	if s, ok := status.FromError(err); ok {
		return s
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return status.FromContextError(err)
	}
	return status.New(codes.Internal, err.Error())
}

// generalReason returns the reason for a status that has none; empty: it gets none. Such a status
// comes from the gRPC library, from a context that has ended, or from an error without a status.
func generalReason(code codes.Code) string {
	switch code {
	case codes.InvalidArgument:
		return "INVALID_FIELD"
	case codes.Unauthenticated:
		return "UNAUTHENTICATED"
	case codes.PermissionDenied:
		return "PERMISSION_DENIED"
	case codes.Unimplemented:
		return "UNIMPLEMENTED"
	case codes.DeadlineExceeded:
		return "DEADLINE_EXCEEDED"
	case codes.Canceled:
		return "CANCELLED"
	case codes.Unavailable: // from the library: the connection ends, and the client sees that
		return ""
	default:
		return "INTERNAL"
	}
}

// KnownMethod returns UNIMPLEMENTED if a server has no such method ("/service/method"). Without
// this check, gRPC answers without a reason.
func KnownMethod(services map[string]grpc.ServiceInfo, method string) error {
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	if slices.ContainsFunc(services[service].Methods, func(m grpc.MethodInfo) bool { return m.Name == name }) {
		return nil
	}
	return Fit(Refusal(codes.Unimplemented, "UNIMPLEMENTED",
		fmt.Sprintf("this server has no method %s: use the .proto files of its version, which `millrace protos` writes", text.Cut(method, MetadataBytes)),
		map[string]string{"object": method}))
}

// shortInfo cuts a long reason and long metadata values. If the metadata is still longer than
// metadataSum, it drops entries, from the last name in sorted order on.
func shortInfo(info *errdetails.ErrorInfo) *errdetails.ErrorInfo {
	short := &errdetails.ErrorInfo{Reason: text.Cut(info.GetReason(), MetadataBytes/8), Domain: info.GetDomain(), Metadata: map[string]string{}}
	room := metadataSum
	for _, name := range slices.Sorted(maps.Keys(info.GetMetadata())) {
		value := text.Cut(info.GetMetadata()[name], min(MetadataBytes, room))
		if room -= len(name) + len(value); room < 0 {
			break
		}
		short.Metadata[name] = value
	}
	return short
}

// percentLength returns the length in bytes of a text in the header grpc-message, where other bytes
// than printable ASCII, and the percent sign, are written as three characters.
func percentLength(s string) int {
	n := 0
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '%' {
			n += 2
		}
		n++
	}
	return n
}

// UnaryStatus and StreamStatus are interceptors that apply Fit to the errors of calls.
func UnaryStatus(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	response, err := handler(ctx, request)
	return response, Fit(err)
}

// StreamStatus is UnaryStatus for streams.
func StreamStatus(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return Fit(handler(service, stream))
}

// Check refuses requests that break the rules in the protos, with INVALID_FIELD. Messages that are
// no protobuf, such as raw frames, are checked by their handlers.
type Check struct{ Validator protovalidate.Validator }

// Unary is an interceptor.
func (c Check) Unary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := c.message(request); err != nil {
		return nil, err
	}
	return handler(ctx, request)
}

// Stream is an interceptor that checks each message.
func (c Check) Stream(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return handler(service, checkedStream{stream, c})
}

func (c Check) message(m any) error {
	checked, ok := m.(proto.Message)
	if !ok {
		return nil
	}
	err := c.Validator.Validate(checked)
	if err == nil {
		return nil
	}
	return InvalidField(Violation(err))
}

type checkedStream struct {
	grpc.ServerStream
	check Check
}

func (s checkedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return s.check.message(m)
}

// Violation returns the first field of a request that breaks a rule of the protos, and a
// description of the fault, from an error of the validator.
func Violation(err error) (field, words string) {
	violations := (*protovalidate.ValidationError)(nil)
	if !errors.As(err, &violations) || len(violations.Violations) == 0 {
		return "request", err.Error()
	}
	first := violations.Violations[0]
	return protovalidate.FieldPathString(first.Proto.GetField()), inWords(first)
}

// patterns maps regular expressions of rules in the protos to a text that says what is wrong with a
// value that does not match, and what to do. Other rules keep the validator's text.
var patterns = map[string]string{
	"^[a-zA-Z0-9._-]*$":      "it has characters other than letters, digits, '.', '_' and '-': leave those out",
	"^[^\\x00-\\x1f\\x7f]*$": "it has control characters: leave those out",
}

// inWords says in plain words which rule a field breaks.
func inWords(v *protovalidate.Violation) string {
	if v.Proto.GetRuleId() == "string.pattern" && v.RuleValue.IsValid() {
		if words, ok := patterns[v.RuleValue.String()]; ok {
			return words
		}
	}
	return v.Proto.GetMessage()
}
