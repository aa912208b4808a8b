// Package bridge is an Adapter: it carries calls that arrive as JSON over HTTP to gRPC servers, and
// their answers back. It knows no call by name: requests and responses are found by the names of
// the .proto files. Tokens, rules and errors are those of the gRPC servers.
package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/millrace/millrace/internal/edge"
	"github.com/millrace/millrace/internal/text"
)

const (
	// requestBytes bounds the JSON of a request.
	requestBytes = 16 << 20
	// heartbeat is the longest silence of a stream of events. It shows each side that the other one
	// is there.
	heartbeat = 15 * time.Second
	// patience is the time that a reader has to take one event of a stream.
	patience = 10 * time.Second
)

// Marshal writes messages as JSON, with the fields that have their default.
var Marshal = protojson.MarshalOptions{EmitDefaultValues: true}

// Call is one call that is to be carried.
type Call struct {
	// Method is the full name: "/package.Service/Call".
	Method string
	// Token of the caller; empty: none.
	Token string
	// To is the connection to the server that answers.
	To grpc.ClientConnInterface
	// Until ends a stream of answers when it is closed.
	Until <-chan struct{}
}

// Serve answers a request whose body is the JSON of the request message. A single answer is
// written as JSON, a stream of answers as server-sent events.
func Serve(w http.ResponseWriter, r *http.Request, c Call) {
	method, err := describe(c.Method)
	if err != nil {
		WriteError(w, err)
		return
	}
	request, response, err := messages(method)
	if err != nil {
		WriteError(w, err)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, requestBytes))
	if err != nil {
		WriteError(w, unread(err))
		return
	}
	if len(body) > 0 {
		if err := protojson.Unmarshal(body, request); err != nil {
			WriteError(w, edge.InvalidField("body", fmt.Sprintf("it is no JSON of %s: %s", method.Input().FullName(), text.Cut(err.Error(), edge.MetadataBytes))))
			return
		}
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	if c.Token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.Token)
	}
	if method.IsStreamingServer() {
		serveStream(ctx, w, c, request, response)
		return
	}
	if err := c.To.Invoke(ctx, c.Method, request, response); err != nil {
		WriteError(w, err)
		return
	}
	text, err := Marshal.Marshal(response)
	if err != nil {
		WriteError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(text) // An error means that the reader has left.
}

// unread returns the error of a request whose body could not be read.
func unread(err error) error {
	if tooLong := (*http.MaxBytesError)(nil); errors.As(err, &tooLong) {
		return edge.InvalidField("body", fmt.Sprintf("it is longer than %d bytes: send large submissions by gRPC", tooLong.Limit))
	}
	return edge.InvalidField("body", "it could not be read: "+err.Error())
}

// describe finds a call that has one request.
func describe(full string) (protoreflect.MethodDescriptor, error) {
	service, name, _ := strings.Cut(strings.TrimPrefix(full, "/"), "/")
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err == nil {
		if described, ok := found.(protoreflect.ServiceDescriptor); ok {
			if method := described.Methods().ByName(protoreflect.Name(name)); method != nil && !method.IsStreamingClient() {
				return method, nil
			}
		}
	}
	return nil, edge.Fit(edge.Refusal(codes.Unimplemented, "UNIMPLEMENTED",
		fmt.Sprintf("%s cannot be called by HTTP: it does not exist, or it takes a stream of requests; use gRPC", text.Cut(full, edge.MetadataBytes)),
		map[string]string{"object": full}))
}

func messages(method protoreflect.MethodDescriptor) (request, response proto.Message, err error) {
	in, err := protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName())
	if err != nil {
		return nil, nil, err
	}
	out, err := protoregistry.GlobalTypes.FindMessageByName(method.Output().FullName())
	if err != nil {
		return nil, nil, err
	}
	return in.New().Interface(), out.New().Interface(), nil
}

// serveStream carries a stream of answers.
func serveStream(ctx context.Context, w http.ResponseWriter, c Call, request, response proto.Message) {
	stream, err := c.To.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, c.Method)
	if err == nil {
		if err = stream.SendMsg(request); err == nil || errors.Is(err, io.EOF) {
			err = stream.CloseSend()
		}
	}
	if err != nil {
		WriteError(w, err)
		return
	}
	answers := make(chan answer)
	go receive(ctx, stream, response, answers)
	control := http.NewResponseController(w)
	begun := false
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	send := func(event string) bool {
		begun = true
		_ = control.SetWriteDeadline(time.Now().Add(patience)) // Not every server has deadlines.
		if _, err := io.WriteString(w, event); err != nil {
			return false
		}
		return control.Flush() == nil
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.Until:
			return
		case <-beat.C:
			if begun && !send(":\n\n") {
				return
			}
		case a := <-answers:
			if a.err != nil && !begun && !errors.Is(a.err, io.EOF) {
				WriteError(w, a.err)
				return
			}
			if !begun {
				EventHeaders(w)
			}
			switch {
			case errors.Is(a.err, io.EOF):
				send("event: end\ndata: {}\n\n")
				return
			case a.err != nil:
				_, body := errorBody(a.err)
				send("event: error\ndata: " + string(body) + "\n\n")
				return
			case !send("data: " + string(a.text) + "\n\n"):
				return
			}
		}
	}
}

// answer is one message of a stream as JSON, or its end.
type answer struct {
	text []byte
	err  error
}

// receive reads a stream until it ends.
func receive(ctx context.Context, stream grpc.ClientStream, into proto.Message, to chan<- answer) {
	for {
		var a answer
		if a.err = stream.RecvMsg(into); a.err == nil {
			a.text, a.err = Marshal.Marshal(into)
		}
		select {
		case to <- a:
		case <-ctx.Done():
			return
		}
		if a.err != nil {
			return
		}
	}
}

// EventHeaders sets the headers of a stream of server-sent events.
func EventHeaders(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no") // Proxies such as nginx pass on each event at once.
}

// Error is the JSON of an error. The names are those of gRPC's codes and of the API's reasons.
type Error struct {
	Code     string            `json:"code"`
	Reason   string            `json:"reason"`
	Message  string            `json:"message"`
	Metadata map[string]string `json:"metadata"`
}

// WriteError answers with an error that has a gRPC status.
func WriteError(w http.ResponseWriter, err error) {
	httpCode, body := errorBody(err)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if httpCode == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	w.WriteHeader(httpCode)
	_, _ = w.Write(body) // An error means that the reader has left.
}

func errorBody(err error) (httpCode int, body []byte) {
	s := status.Convert(edge.Fit(err))
	out := Error{Code: code.Code_name[int32(s.Code())], Message: s.Message(), Metadata: map[string]string{}}
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			out.Reason = info.GetReason()
			if info.GetMetadata() != nil {
				out.Metadata = info.GetMetadata()
			}
		}
	}
	body, _ = json.Marshal(out) // Texts and maps of texts have a JSON.
	return httpStatus(s.Code()), body
}

// statusClientGone is the status of a call whose caller has left; nobody sees it.
const statusClientGone = 499

// httpStatus is the mapping that grpc-gateway and Connect use.
func httpStatus(c codes.Code) int {
	switch c {
	case codes.OK:
		return http.StatusOK
	case codes.Canceled:
		return statusClientGone
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange:
		return http.StatusBadRequest
	case codes.Unauthenticated:
		return http.StatusUnauthorized
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.NotFound:
		return http.StatusNotFound
	case codes.AlreadyExists, codes.Aborted:
		return http.StatusConflict
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.Unimplemented:
		return http.StatusNotImplemented
	case codes.Unavailable:
		return http.StatusServiceUnavailable
	case codes.DeadlineExceeded:
		return http.StatusGatewayTimeout
	case codes.Unknown, codes.Internal, codes.DataLoss:
	}
	return http.StatusInternalServerError
}
