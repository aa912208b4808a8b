package server_test

import (
	"context"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/server"
)

// hostile fills messages with values that no honest client sends, and some with values that one
// does.
type hostile struct{ *rand.Rand }

func pick[T any](h hostile, from ...T) T { return from[h.IntN(len(from))] }

func (h hostile) fill(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if h.IntN(3) == 0 || depth > 6 {
			continue
		}
		switch {
		case field.IsMap():
			for range h.IntN(3) {
				key := h.scalar(field.MapKey()).MapKey()
				if field.MapValue().Message() != nil {
					v := m.Mutable(field).Map().NewValue()
					h.fill(v.Message(), depth+1)
					m.Mutable(field).Map().Set(key, v)
				} else {
					m.Mutable(field).Map().Set(key, h.scalar(field.MapValue()))
				}
			}
		case field.IsList():
			for range pick(h, 0, 1, 3, 20) {
				if field.Message() != nil {
					v := m.Mutable(field).List().NewElement()
					h.fill(v.Message(), depth+1)
					m.Mutable(field).List().Append(v)
				} else {
					m.Mutable(field).List().Append(h.scalar(field))
				}
			}
		case field.Message() != nil:
			h.fill(m.Mutable(field).Message(), depth+1)
		default:
			m.Set(field, h.scalar(field))
		}
	}
	if d, ok := m.Interface().(*durationpb.Duration); ok {
		d.Seconds = pick[int64](h, 0, 0, 1, -1, 3600, -3600, math.MaxInt64, math.MinInt64, 9_223_372_036, 315_576_000_000)
		d.Nanos = pick[int32](h, 0, 1, -5, 500_000, math.MaxInt32, math.MinInt32)
	}
}

func (h hostile) scalar(field protoreflect.FieldDescriptor) protoreflect.Value {
	u := pick[uint64](h, 0, 1, 2, 7, 1<<31, 1<<32-1, 1<<40, 1<<63, math.MaxUint64)
	switch field.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(h.IntN(2) == 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(pick[protoreflect.EnumNumber](h, 0, 1, 2, 3, 99, -1, math.MaxInt32))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(u))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(int64(u))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(u))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(u)
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(float32(math.NaN()))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(pick(h, 0, 1, -1, math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, math.SmallestNonzeroFloat64))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(make([]byte, pick(h, 0, 1, 31, 32, 33, 70_000)))
	default:
		return protoreflect.ValueOfString(pick(h, "", "k", "bench.noop", "lic", "a\x00b", "\x1b]0;x\a", "😀", strings.Repeat("😀", 2000), strings.Repeat("x", 100_000), "../..", "v1.-1", "pkg:fn"))
	}
}

// No request of a client does harm: it is refused with a reason or carried out, and the tasks of
// other clients run.
func TestHostileRequestsAreRefusedAndDoNoHarm(t *testing.T) {
	c := start(t, server.Config{})
	// Thousands of requests take a minute on a quiet machine, and many on a busy one.
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	r := registration("w-0")
	r.Resources = map[string]float64{"lic": 1}
	c.join(c.conn, r, succeed)
	requests := 60
	if testing.Short() {
		requests = 15
	}
	fine := map[codes.Code]bool{codes.OK: true, codes.InvalidArgument: true, codes.NotFound: true, codes.FailedPrecondition: true,
		codes.AlreadyExists: true, codes.OutOfRange: true, codes.DeadlineExceeded: true}
	methods := pb.File_millrace_v1_scheduler_service_proto.Services().ByName("SchedulerService").Methods()
	for i := range methods.Len() {
		method := methods.Get(i)
		if method.Name() == "Shutdown" {
			continue
		}
		t.Run(string(method.Name()), func(t *testing.T) {
			h := hostile{rand.New(rand.NewPCG(1, uint64(i)))}
			input, err := protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName())
			if err != nil {
				t.Fatal(err)
			}
			output, err := protoregistry.GlobalTypes.FindMessageByName(method.Output().FullName())
			if err != nil {
				t.Fatal(err)
			}
			for range requests {
				request := input.New()
				h.fill(request, 0)
				// A watch, or a call that waits for a result, may take as long as it wants.
				limited, cancel := context.WithTimeout(ctx, 20*time.Second)
				if method.IsStreamingServer() || method.Name() == "GetResult" {
					cancel()
					limited, cancel = context.WithTimeout(ctx, 20*time.Millisecond)
				}
				stream, err := c.conn.NewStream(limited, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/"+string(method.Parent().FullName())+"/"+string(method.Name()))
				if err == nil {
					if err = stream.SendMsg(request.Interface()); err == nil {
						err = stream.CloseSend()
					}
					// If the stream has ended before all was sent, only RecvMsg tells why.
					if answer := output.New().Interface(); err == nil || errors.Is(err, io.EOF) {
						err = stream.RecvMsg(answer)
					}
				}
				cancel()
				if code := status.Code(err); !fine[code] {
					t.Fatalf("%v: %v\n%.2000v", code, err, request.Interface())
				}
			}
		})
	}
	id := c.open(ctx)
	watch := c.watch(ctx, &pb.WatchRequest{ClientId: id})
	for round := range 3 {
		request := &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Options: []*pb.TaskOptions{{Resources: map[string]float64{"lic": 1}}},
			Tasks: noops("after-"+string(rune('a'+round)), 10)}
		for _, task := range request.Tasks {
			task.OptionsIndex = 1
		}
		submitted, err := c.client.SubmitBatch(ctx, request)
		if err != nil {
			t.Fatal(err)
		}
		for _, update := range c.final(watch, submitted.GetTaskIds()) {
			if update.GetState() != pb.TaskState_TASK_STATE_SUCCEEDED {
				t.Errorf("%v", update)
			}
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	assigned := make(chan *workerv1.Assignment, 1)
	c.join(c.conn, registration("w-0"), func(a *workerv1.Assignment) *workerv1.TaskReport {
		assigned <- proto.CloneOf(a)
		return succeed(a)
	})
	submit := func(o *pb.TaskOptions) error {
		_, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Options: []*pb.TaskOptions{o}, Tasks: []*pb.TaskSpec{{Key: "k", Op: "bench.noop", OptionsIndex: 1, Hold: true}}})
		return err
	}
	for field, o := range map[string]*pb.TaskOptions{
		"timeout":                 {Timeout: &durationpb.Duration{Seconds: 1, Nanos: -5}},
		"timeout: ":               {Timeout: durationpb.New(100 * 365 * 24 * time.Hour)},
		"options[0].timeout":      {Timeout: &durationpb.Duration{}},
		"retry_backoff":           {RetryBackoff: durationpb.New(-time.Hour)},
		"options[0].retry":        {RetryBackoff: durationpb.New(292 * 365 * 24 * time.Hour)},
		"resources":               {Resources: map[string]float64{"lic": math.NaN()}},
		"options[0].resources":    {Resources: map[string]float64{"lic": -5}},
		`options[0].resources[""`: {Resources: map[string]float64{"": 1}},
		"workers":                 {Workers: []*pb.WorkerSelector{{By: &pb.WorkerSelector_Name{Name: strings.Repeat("w", 10_000)}}}},
		"expected_output_bytes":   {ExpectedOutputBytes: math.MaxUint64},
		"slots":                   {Slots: math.MaxUint32},
		"max_retries":             {MaxRetries: math.MaxUint32},
	} {
		wantReason(t, submit(o), "INVALID_FIELD", field)
	}
	_, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{})
	wantReason(t, err, "INVALID_FIELD", "tasks")
	_, err = c.client.OpenClient(ctx, &pb.OpenClientRequest{ApiVersion: "v1.-1"})
	wantReason(t, err, "INVALID_FIELD", "api_version")
	if err := submit(&pb.TaskOptions{Timeout: durationpb.New(1)}); err != nil {
		t.Fatal(err)
	}
	if a := <-assigned; a.GetTimeoutMillis() != 1 {
		t.Errorf("a timeout of 1 ns became %d ms", a.GetTimeoutMillis())
	}
}
