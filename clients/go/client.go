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
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

const (
	apiVersion = "v1.0"

	// defaultLease outlives a restart of the client's network, not the client's death by much.
	defaultLease = 30 * time.Second
	// defaultRetryTimeout bounds how long a call is tried again while the scheduler cannot be reached.
	defaultRetryTimeout = 30 * time.Second
	maxMessageBytes     = 256 << 20
	windowBytes         = 8 << 20
	socketBufferBytes   = 128 << 10
)

// Option configures a Client.
type Option func(*config)

type config struct {
	address, token, file  string
	name, namespace       string
	lease, retry          time.Duration
	tls                   *tls.Config
	unshared              bool
	dial                  []grpc.DialOption
	leaseless             bool
	batchTasks, batchSize int
}

// WithAddress is the host:port of the scheduler.
func WithAddress(address string) Option { return func(c *config) { c.address = address } }

// WithToken is the cluster's token.
func WithToken(token string) Option { return func(c *config) { c.token = token } }

// WithSchedulerFile reads address and token from the file that `millrace up --scheduler-file` writes.
func WithSchedulerFile(path string) Option { return func(c *config) { c.file = path } }

// WithName names the client, for people. The default is the program's name.
func WithName(name string) Option { return func(c *config) { c.name = name } }

// WithNamespace is the namespace of the client's keys. The default is "default".
func WithNamespace(namespace string) Option { return func(c *config) { c.namespace = namespace } }

// WithLease is how long the cluster keeps what the client holds after it has lost touch with it. The default is 30 s.
func WithLease(d time.Duration) Option { return func(c *config) { c.lease = d } }

// WithRetryTimeout is how long calls are tried again while the scheduler cannot be reached, or has no memory for more tasks
// (ErrSchedulerFull). The default is 30 s.
func WithRetryTimeout(d time.Duration) Option { return func(c *config) { c.retry = d } }

// WithTLS encrypts the connections.
func WithTLS(t *tls.Config) Option { return func(c *config) { c.tls = t } }

// WithoutSharedMemory sends all data by gRPC, even to and from workers on this host, whose memory is used otherwise.
func WithoutSharedMemory() Option { return func(c *config) { c.unshared = true } }

// WithDialOptions adds options to the connection to the scheduler: a dialer for tests, an interceptor for tracing.
func WithDialOptions(options ...grpc.DialOption) Option {
	return func(c *config) { c.dial = append(c.dial, options...) }
}

// WithoutLease opens no lease: the client can look and operate, but not hold results, so Submit, Scatter and GraphBuilder.Submit
// do not work. For tools.
func WithoutLease() Option { return func(c *config) { c.leaseless = true } }

// Client is a connection to a cluster and a lease on it. Its methods may be called from any goroutine.
type Client struct {
	config  config
	conn    *grpc.ClientConn
	service millracev1.SchedulerServiceClient

	// ctx ends with the client. It is the one context that outlives calls: the background goroutines run under it.
	ctx    context.Context //nolint:containedctx // the lifetime of the background goroutines
	cancel context.CancelFunc
	wg     sync.WaitGroup
	closed atomic.Bool

	lease atomic.Uint64 // Number of the lease; 0 without one.
	// nonce is in each key that the client makes up, and tells it from other clients' keys; nextKey counts them.
	nonce   string
	nextKey atomic.Uint64
	cluster atomic.Pointer[millracev1.ClusterInfo]

	futures   futureTable
	submits   submitQueue
	releases  releaseQueue
	data      dataPool
	callToken credentials.PerRPCCredentials
}

// Dial connects to a cluster, named by options, else by MILLRACE_ADDRESS and MILLRACE_TOKEN, else by
// MILLRACE_SCHEDULER_FILE, and opens a lease. ctx bounds the dialling only.
func Dial(ctx context.Context, options ...Option) (*Client, error) {
	conf := config{lease: defaultLease, retry: defaultRetryTimeout, batchTasks: maxBatchTasks, batchSize: maxBatchBytes}
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
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
	}
	if conf.token != "" {
		c.callToken = bearer(conf.token)
		dial = append(dial, grpc.WithPerRPCCredentials(c.callToken))
	}
	c.conn, err = grpc.NewClient(target(conf.address), append(dial, conf.dial...)...)
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

// target leaves addresses with a resolver's scheme as they are; others are host:port, to be dialled as they stand.
func target(address string) string {
	for i := range len(address) {
		if address[i] == ':' && len(address) > i+2 && address[i+1] == '/' {
			return address
		}
	}
	return "passthrough:///" + address
}

// taskWorker names the worker if this process runs its tasks.
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

// fullBackoff is the first wait after SCHEDULER_FULL; it doubles up to a second.
const fullBackoff = 100 * time.Millisecond

// retry makes a call until it succeeds, the scheduler refuses it, or it could not be reached, or had no memory for it, for
// the retry timeout. call must be idempotent.
func (c *Client) retry(ctx context.Context, op string, call func(context.Context) error) error {
	deadline := time.Now().Add(c.config.retry)
	wait := 5 * time.Millisecond
	for {
		err := call(ctx)
		if err == nil {
			return nil
		}
		full := status.Code(err) == codes.ResourceExhausted && errors.Is(callError(context.Background(), op, err), ErrSchedulerFull)
		if !full && status.Code(err) != codes.Unavailable || time.Now().Add(wait).After(deadline) {
			return callError(ctx, op, err)
		}
		if full {
			wait = max(wait, fullBackoff)
		}
		if !sleep(ctx, wait) {
			return fmt.Errorf("millrace: %s: %w (the scheduler at %s does not answer: %s)", op, context.Cause(ctx), c.config.address, status.Convert(err).Message())
		}
		wait = min(2*wait, time.Second)
	}
}

// sleep waits for d; false if ctx ended before.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// Close gives the lease back, which releases everything that the client held, and ends all waits with ErrClosed. It does
// not wait for queued submissions: Flush first if they matter.
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
			err = nil // There is nobody left to give the lease back to.
		}
		err = callError(ctx, "CloseClient", err)
	}
	return errors.Join(err, c.data.close(), c.conn.Close())
}

// Address is the scheduler's address.
func (c *Client) Address() string { return c.config.address }

// ID is the number of the client's lease; 0 without one.
func (c *Client) ID() uint64 { return c.lease.Load() }

// Scheduler is the raw service, for what the Client has no method for.
func (c *Client) Scheduler() millracev1.SchedulerServiceClient { return c.service }

// newKey makes a key up: the name of the op, the client's nonce and a count.
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

// newNonce returns eight random characters. The scheduler keeps the key of each task, so a nonce is short: of a million
// clients in one namespace, two have the same with a probability of 1 in 560.
func newNonce() string {
	var id [6]byte
	if _, err := rand.Read(id[:]); err != nil {
		panic(err) // NB: crypto/rand.Read is documented never to fail.
	}
	return base64.RawURLEncoding.EncodeToString(id[:])
}

// newRequestID makes the name under which a submission is applied once, however often it is sent.
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

// RequireTransportSecurity implements credentials.PerRPCCredentials: clusters bound to loopback need none.
func (bearer) RequireTransportSecurity() bool { return false }
