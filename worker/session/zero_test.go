package session_test

import (
	"context"
	"log/slog"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/worker/session"
	"github.com/millrace/millrace/worker/workertest"
)

// afterSend calls a function after each message that was sent.
type afterSend struct {
	grpc.ClientStream
	call func()
}

func (s afterSend) SendMsg(m any) error {
	err := s.ClientStream.SendMsg(m)
	s.call()
	return err
}

// The scheduler may know a worker before the worker itself goes on: its farewell must come then,
// too.
func TestAZeroWorkerStoppedWhileItRegistersSaysThatItLeaves(t *testing.T) {
	s := workertest.NewScheduler(t)
	ctx, stop := context.WithCancel(t.Context())
	var opened *workertest.Session
	conn, err := grpc.NewClient("passthrough:///"+s.Address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, c *grpc.ClientConn, method string, open grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
			stream, err := open(ctx, d, c, method, o...)
			return afterSend{stream, func() {
				if opened == nil {
					opened = s.Accept(t)
				}
				stop()
			}}, err
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ended := make(chan error, 1)
	go func() {
		ended <- session.RunZero(ctx, session.ZeroConfig{Registration: &workerv1.Registration{}, Scheduler: conn, RSS: func() uint64 { return 0 }, Log: slog.New(slog.DiscardHandler)})
	}()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	opened.Until("the farewell", func() bool { return opened.Leaving })
}
