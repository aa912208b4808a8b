package millrace

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/leader"
	"github.com/millrace/millrace/internal/pause"
)

const (
	apiVersion = "v1.0"

	// defaultLease is long enough for a short interruption of the client's network.
	// After the client's death, its results are kept only this much longer.
	defaultLease = 30 * time.Second
	// defaultRetryTimeout is how long a call is retried while the scheduler cannot be reached.
	defaultRetryTimeout = 30 * time.Second
	// defaultReconnectTimeout is how long submissions, fetches of results and waits for locks and
	// the like are retried. A scheduler with a journal may be away that long without a loss.
	defaultReconnectTimeout = 10 * time.Minute
	maxMessageBytes         = 256 << 20
	windowBytes             = 8 << 20
	socketBufferBytes       = 128 << 10
)

// Option configures a Client.
type Option func(*config)

type config struct {
	address, token, file  string
	name, namespace       string
	lease                 time.Duration
	retry, reconnect      time.Duration
	tls                   *tls.Config
	unshared              bool
	dial                  []grpc.DialOption
	leaseless             bool
	traceparent           func(context.Context) string // nil: that of outgoing metadata
	batchTasks, batchSize int
}

// WithAddress sets the host:port of the scheduler. If there are several schedulers, of which one
// leads, it has the addresses of all, with commas between them; the client finds the leader.
func WithAddress(address string) Option { return func(c *config) { c.address = address } }

// WithToken sets the cluster's token.
func WithToken(token string) Option { return func(c *config) { c.token = token } }

// WithSchedulerFile makes Dial read the address and the token from the file that `millrace up
// --scheduler-file` writes.
func WithSchedulerFile(path string) Option { return func(c *config) { c.file = path } }

// WithName sets a name of the client for people. The default is the program's name.
func WithName(name string) Option { return func(c *config) { c.name = name } }

// WithNamespace sets the namespace of the client's keys. The default is "default".
func WithNamespace(namespace string) Option { return func(c *config) { c.namespace = namespace } }

// WithLease sets how long the cluster keeps the results that the client holds after the connection
// to the client was lost. The default is 30 s.
func WithLease(d time.Duration) Option { return func(c *config) { c.lease = d } }

// WithRetryTimeout sets how long calls are retried while the scheduler cannot be reached, or has no
// memory for more tasks (ErrSchedulerFull). The time in which a scheduler reads its journal is not
// counted. The default is 30 s. See WithReconnectTimeout for submissions, results and waits.
func WithRetryTimeout(d time.Duration) Option { return func(c *config) { c.retry = d } }

// WithReconnectTimeout sets how long the scheduler may be away until submissions, fetches of
// results from workers, and waits for locks, queues and the like fail with ErrUnavailable, unless
// their contexts end before. The default is 10 min. A Future whose task was accepted waits as long
// as the context of the wait: it fails if the scheduler is back and does not know the client's
// lease (ErrLeaseLost).
func WithReconnectTimeout(d time.Duration) Option { return func(c *config) { c.reconnect = d } }

// WithTLS encrypts the connections.
func WithTLS(t *tls.Config) Option { return func(c *config) { c.tls = t } }

// WithoutSharedMemory sends all data by gRPC. Without this option, data to and from workers on this
// host goes through their shared memory.
func WithoutSharedMemory() Option { return func(c *config) { c.unshared = true } }

// WithDialOptions adds options to the connection to the scheduler, for example a dialer for tests
// or an interceptor for tracing.
func WithDialOptions(options ...grpc.DialOption) Option {
	return func(c *config) { c.dial = append(c.dial, options...) }
}

// WithoutLease opens no lease. The client can query and operate the cluster but cannot hold
// results, so Submit, Scatter and GraphBuilder.Submit do not work. It is meant for tools.
func WithoutLease() Option { return func(c *config) { c.leaseless = true } }

// Client is a connection to a cluster, together with a lease on it. Its methods may be called from
// any goroutine.
type Client struct {
	config  config
	conn    leader.Conn
	service millracev1.SchedulerServiceClient

	// ctx ends with the client. It is the only context that outlives calls: the background
	// goroutines run under it.
	ctx    context.Context //nolint:containedctx // the lifetime of the background goroutines
	cancel context.CancelFunc
	wg     sync.WaitGroup
	closed atomic.Bool

	lease atomic.Uint64 // the number of the lease; 0 without one
	// nonce is a part of each generated key, so that the keys of different clients differ.
	// nextKey counts these keys.
	nonce   string
	nextKey atomic.Uint64
	cluster atomic.Pointer[millracev1.ClusterInfo]

	futures   futureTable
	submits   submitQueue
	releases  releaseQueue
	data      dataPool
	callToken credentials.PerRPCCredentials
}

// Dial connects to a cluster and opens a lease. The cluster is the one that the options name,
// else the one of MILLRACE_ADDRESS and MILLRACE_TOKEN, else the one of MILLRACE_SCHEDULER_FILE.
// ctx limits only the dialling.
func Dial(ctx context.Context, options ...Option) (*Client, error) {
	conf := config{lease: defaultLease, retry: defaultRetryTimeout, reconnect: defaultReconnectTimeout, batchTasks: maxBatchTasks, batchSize: maxBatchBytes}
	for _, o := range options {
		o(&conf)
	}
	if conf.name == "" {
		conf.name = filepath.Base(os.Args[0])
	}
	var err error
	if conf.address, conf.token, err = findCluster(conf.address, conf.token, conf.file); err != nil {
		return nil, err
	}
	transport := insecure.NewCredentials()
	if conf.tls != nil {
		transport = credentials.NewTLS(conf.tls)
	}
	c := &Client{config: conf, nonce: newNonce()}
	dial := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(wireCodec{}), grpc.MaxCallRecvMsgSize(maxMessageBytes), grpc.MaxCallSendMsgSize(maxMessageBytes)),
		grpc.WithInitialWindowSize(windowBytes),
		grpc.WithInitialConnWindowSize(2 * windowBytes),
		grpc.WithReadBufferSize(socketBufferBytes),
		grpc.WithWriteBufferSize(socketBufferBytes),
		grpc.WithKeepaliveParams(signsOfLife(conf.address)),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		reconnectSoon(),
	}
	if conf.token != "" {
		c.callToken = bearer(conf.token)
		dial = append(dial, grpc.WithPerRPCCredentials(c.callToken))
	}
	c.conn, err = leader.Dial(conf.address, conf.retry, append(dial, conf.dial...)...)
	if err != nil {
		return nil, fmt.Errorf("millrace: address %q: %w", conf.address, err)
	}
	c.service = millracev1.NewSchedulerServiceClient(c.conn)
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	c.data.init(c)
	if conf.leaseless {
		return c, nil
	}
	if err := c.openLease(ctx); err != nil {
		c.cancel()
		return nil, errors.Join(err, c.conn.Close())
	}
	c.futures.init()
	c.submits.init()
	c.releases.init()
	c.wg.Go(c.watchLoop)
	c.wg.Go(c.submitLoop)
	c.wg.Go(c.releaseLoop)
	return c, nil
}

// signsOfLife says how long a connection to a scheduler is silent until it counts as broken. If
// there are other schedulers, it is left sooner; schedulers allow pings every 10 s.
func signsOfLife(address string) keepalive.ClientParameters {
	if strings.Contains(address, ",") {
		return keepalive.ClientParameters{Time: 12 * time.Second, Timeout: 5 * time.Second}
	}
	return keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}
}

// reconnectSoon limits the pauses between attempts to connect to one second. gRPC's own pauses grow
// to two minutes: calls would fail long after the other side is back.
func reconnectSoon() grpc.DialOption {
	return grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
		MinConnectTimeout: 10 * time.Second,
	})
}

// taskWorker returns the worker's name if this process runs tasks of a worker, else "".
func taskWorker() string {
	if os.Getenv("MILLRACE_EXECUTOR") == "" {
		return ""
	}
	return os.Getenv("MILLRACE_WORKER")
}

func (c *Client) openLease(ctx context.Context) error {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	in := &millracev1.OpenClientRequest{
		Name:       c.config.name,
		Namespace:  c.config.namespace,
		LeaseTtl:   durationpb.New(c.config.lease),
		ApiVersion: apiVersion,
		Origin:     fmt.Sprintf("%s, %s, go, pid %d", host, filepath.Base(os.Args[0]), os.Getpid()),
		Worker:     taskWorker(),
	}
	var out *millracev1.OpenClientResponse
	err = c.retry(ctx, "OpenClient", func(ctx context.Context) error {
		var err error
		out, err = c.service.OpenClient(ctx, in)
		return err
	})
	if err != nil {
		return err
	}
	c.lease.Store(out.GetClient().GetClientId())
	c.cluster.Store(out.GetCluster())
	return nil
}

// fullBackoff is the first wait after SCHEDULER_FULL; it doubles up to one second.
const fullBackoff = 100 * time.Millisecond

// retry is retryFor with the retry timeout.
func (c *Client) retry(ctx context.Context, op string, call func(context.Context) error) error {
	return c.retryFor(ctx, op, c.config.retry, call)
}

// retryFor makes a call until it succeeds or the scheduler refuses it. While the scheduler cannot
// be reached, or none of several leads, it repeats the call for at most the time away; while the
// scheduler answers that it has no memory for the call or cannot do it now, for the retry timeout.
// call must be idempotent.
func (c *Client) retryFor(ctx context.Context, op string, away time.Duration, call func(context.Context) error) error {
	var lost, refused time.Time // set by the first failure: a call that waits in line is no outage
	wait := 5 * time.Millisecond
	for {
		err := call(ctx)
		if err == nil {
			return nil
		}
		now := time.Now()
		if lost.IsZero() {
			lost, refused = now.Add(away), now.Add(c.config.retry)
		}
		reason, until := "", refused
		var answer *Error
		if errors.As(callError(context.Background(), op, err), &answer) {
			reason = answer.Reason
		}
		switch full := status.Code(err) == codes.ResourceExhausted && reason == reasonFull; {
		case full:
			wait = max(wait, fullBackoff)
			lost = now.Add(away)
		case status.Code(err) != codes.Unavailable:
			return callError(ctx, op, err)
		case reason == reasonStarting:
			// The scheduler is there, and will answer soon.
			lost, refused, until = now.Add(away), now.Add(c.config.retry), now.Add(away+wait)
		case reason == "" || reason == leader.Reason:
			until = lost
		}
		if now.Add(wait).After(until) {
			return callError(ctx, op, err)
		}
		if pause.For(ctx, wait) != nil {
			return fmt.Errorf("millrace: %s: %w (the scheduler at %s does not answer: %s)", op, context.Cause(ctx), c.config.address, status.Convert(err).Message())
		}
		wait = min(2*wait, time.Second)
	}
}

// Close returns the lease, which releases everything that the client held, and ends all waits with
// ErrClosed. It does not wait for queued submissions: call Flush first if they matter.
func (c *Client) Close() error {
	if !c.closed.CompareAndSwap(false, true) {
		return nil
	}
	c.cancel()
	c.wg.Wait()
	c.futures.failAll(ErrClosed)
	var err error
	if id := c.lease.Load(); id != 0 {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, err = c.service.CloseClient(ctx, &millracev1.CloseClientRequest{ClientId: id})
		if status.Code(err) == codes.Unavailable {
			err = nil // the scheduler is gone, and the lease with it
		}
		err = callError(ctx, "CloseClient", err)
	}
	return errors.Join(err, c.data.close(), c.conn.Close())
}

// Shutdown stops the cluster: first the workers, then the scheduler.
func (c *Client) Shutdown(ctx context.Context, reason string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	_, err := c.service.Shutdown(ctx, &millracev1.ShutdownRequest{Reason: reason})
	return callError(ctx, "Shutdown", err)
}

// Address returns the scheduler's address, or those of several with commas between them.
func (c *Client) Address() string { return c.config.address }

// Leader returns the address of the scheduler that has answered the last call: the one that leads,
// if there are several.
func (c *Client) Leader() string { return leader.Address(c.conn, c.config.address) }

// ID returns the number of the client's lease; 0 without one.
func (c *Client) ID() uint64 { return c.lease.Load() }

// Scheduler returns the raw gRPC service, for calls that the Client has no method for.
func (c *Client) Scheduler() millracev1.SchedulerServiceClient { return c.service }

// newKey generates a key: the name of the op, the client's nonce and a counter.
func (c *Client) newKey(op Op) string {
	var buf [96]byte
	b := append(buf[:0], op.name...)
	if len(b) > 64 {
		b = b[:64]
	}
	b = append(b, '-')
	b = append(b, c.nonce...)
	b = append(b, '-')
	b = strconv.AppendUint(b, c.nextKey.Add(1), 10)
	return string(b)
}

// newNonce returns eight random characters. It is short because the scheduler keeps the key of each
// task. Of a million clients in one namespace, two have the same nonce with a probability of 1 in
// 560.
func newNonce() string {
	var id [6]byte
	if _, err := rand.Read(id[:]); err != nil {
		panic(err) // NB: crypto/rand.Read is documented never to fail.
	}
	return base64.RawURLEncoding.EncodeToString(id[:])
}

// newRequestID returns a random identifier of a submission. The scheduler applies a submission once
// per identifier, however often it is sent.
func newRequestID() string {
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		panic(err) // NB: crypto/rand.Read is documented never to fail.
	}
	return hex.EncodeToString(id[:])
}

// bearer sends the token with each call.
type bearer string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials. It returns false,
// because clusters bound to loopback need no TLS.
func (bearer) RequireTransportSecurity() bool { return false }
