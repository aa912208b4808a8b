package web

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/access"
	"github.com/millrace/millrace/internal/edge"
	"github.com/millrace/millrace/internal/hostport"
	"github.com/millrace/millrace/internal/text"
	"github.com/millrace/millrace/server/schedapi"
	"github.com/millrace/millrace/server/web/bridge"
)

const (
	// ownHeader is a header that pages of other sites cannot send without asking first.
	ownHeader = "X-Millrace"
	// loginBytes bounds the body of a login, and loginTimeout the time until it has arrived.
	loginBytes, loginTimeout = 64 << 10, 10 * time.Second
	// workerTimeout is the longest time that a call of a worker with a single answer takes.
	workerTimeout = 10 * time.Second
	// refusedToken equals the words of calls by gRPC.
	refusedToken = "the token is not one of this cluster's: use the one that its scheduler printed; it may be of another cluster, or of one that was restarted"
	// policy allows nothing from other sites. Notebooks on this host may show the page in a frame.
	policy = "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; " +
		"frame-ancestors 'self' http://localhost:* http://127.0.0.1:*"
)

// guarded adds the headers of all answers and refuses requests that pages of other sites have made.
func (s *Site) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		if len(s.config.Tokens) == 0 && !hostport.NamesThisHost(r.Host) {
			bridge.WriteError(w, refused(fmt.Sprintf("the request is for the host %q, and without tokens only names of this host, such as localhost, are answered: use one, or set a token", text.Cut(r.Host, 200))))
			return
		}
		if err := s.sameSite(r); err != nil {
			bridge.WriteError(w, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func refused(message string) error {
	return edge.Refusal(codes.PermissionDenied, "PERMISSION_DENIED", message, nil)
}

// sameSite refuses a request that changes something, unless it carries a header that pages of other
// sites cannot send.
func (s *Site) sameSite(r *http.Request) error {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return nil
	}
	if _, cookie := s.token(r); r.Header.Get(ownHeader) != "1" && (cookie || r.Header.Get("Authorization") == "") {
		return refused("the request has no header \"X-Millrace: 1\", so that a page of another site may have sent it: send the header, or the token as \"Authorization: Bearer TOKEN\"")
	}
	return nil
}

// cookieName differs between clusters on one host, since cookies do not differ between ports.
func (s *Site) cookieName() string { return "millrace_token_" + s.config.Port }

// token returns the token of a request, and whether it came in the cookie.
func (s *Site) token(r *http.Request) (token string, cookie bool) {
	if kind, given, _ := strings.Cut(r.Header.Get("Authorization"), " "); strings.EqualFold(kind, "Bearer") {
		return strings.TrimSpace(given), false
	}
	if c, err := r.Cookie(s.cookieName()); err == nil {
		if value, err := base64.RawURLEncoding.DecodeString(c.Value); err == nil && len(value) > 0 {
			return string(value), true
		}
	}
	return "", false
}

// admit checks that the caller may make a call of the API, and returns the token.
func (s *Site) admit(r *http.Request, method string) (token string, err error) {
	token, _ = s.token(r)
	ctx := r.Context()
	if token != "" {
		ctx = metadata.NewIncomingContext(ctx, metadata.Pairs("authorization", "Bearer "+token))
	}
	_, _, err = s.config.Gate(ctx, method)
	return token, err
}

// session says how the caller is logged in.
func (s *Site) session(w http.ResponseWriter, r *http.Request) {
	role := access.Operator
	if len(s.config.Tokens) > 0 {
		token, cookie := s.token(r)
		caller, known := s.config.Tokens.Find(token)
		switch {
		case known:
		case token == "":
			bridge.WriteError(w, notLoggedIn("missing", "this cluster asks for a token: log in with one"))
			return
		case cookie:
			bridge.WriteError(w, notLoggedIn("ended", "the login of this browser has ended: its token is not one of this cluster's any more, as after a restart with other tokens"))
			return
		default:
			bridge.WriteError(w, notLoggedIn("refused", refusedToken))
			return
		}
		role = caller.Role
	}
	cluster := s.config.Scheduler.Cluster()
	writeJSON(w, struct {
		Role      access.Role `json:"role"`
		Tokens    bool        `json:"tokens"`
		Version   string      `json:"version"`
		ClusterID string      `json:"cluster_id"`
		Life      string      `json:"life"`
		StartTime string      `json:"start_time"`
	}{role, len(s.config.Tokens) > 0, s.config.Version, cluster.ID, strconv.FormatUint(cluster.Life, 10), cluster.StartedAt.UTC().Format(time.RFC3339Nano)})
}

// notLoggedIn says why a login is needed: a token is missing, the login has ended, or is refused.
func notLoggedIn(login, message string) error {
	return edge.Refusal(codes.Unauthenticated, "UNAUTHENTICATED", message, map[string]string{"login": login})
}

func writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(value) // An error means that the reader has left.
}

// login keeps the token of the body in a cookie that scripts cannot read.
func (s *Site) login(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Token string `json:"token"`
	}
	// The sender has shown no token yet, so it gets little time.
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(loginTimeout)) // Not every server has deadlines.
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, loginBytes))
	if err == nil {
		err = json.Unmarshal(text, &body)
	}
	if err != nil {
		bridge.WriteError(w, edge.InvalidField("body", "it is not {\"token\": \"...\"}: "+err.Error()))
		return
	}
	if len(s.config.Tokens) > 0 {
		if _, known := s.config.Tokens.Find(body.Token); !known {
			bridge.WriteError(w, notLoggedIn("refused", refusedToken))
			return
		}
		http.SetCookie(w, s.cookie(r, body.Token, 0))
	}
	w.WriteHeader(http.StatusNoContent)
}

// logout removes the cookie.
func (s *Site) logout(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, s.cookie(r, "", -1))
	w.WriteHeader(http.StatusNoContent)
}

// cookie makes the cookie of a login. It has no path: browsers then take the folder of the address
// as they see it, which includes the prefix of a proxy.
func (s *Site) cookie(r *http.Request, token string, maxAge int) *http.Cookie {
	return &http.Cookie{
		Name: s.cookieName(), Value: base64.RawURLEncoding.EncodeToString([]byte(token)), MaxAge: maxAge, HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https",
	}
}

// call carries a call of the API.
func (s *Site) call(w http.ResponseWriter, r *http.Request) {
	method := "/" + r.PathValue("service") + "/" + r.PathValue("call")
	token, err := s.admit(r, method)
	if err != nil {
		bridge.WriteError(w, err)
		return
	}
	bridge.Serve(w, r, bridge.Call{Method: method, Token: token, To: s.config.API, Until: s.config.Scheduler.Draining()})
}

// workerCalls are the calls of workers that may go through the scheduler: their answers are small.
var workerCalls = []string{
	pb.DataService_GetTaskLogs_FullMethodName, pb.DataService_GetWorkerLog_FullMethodName,
	pb.DataService_FollowLogs_FullMethodName, pb.DataService_DescribeMemory_FullMethodName,
	pb.ExecutorService_DescribeExecutors_FullMethodName,
}

// workerCall carries a call of a worker, with the caller's token.
func (s *Site) workerCall(w http.ResponseWriter, r *http.Request) {
	method := "/" + r.PathValue("service") + "/" + r.PathValue("call")
	if err := s.callWorker(w, r, method); err != nil {
		bridge.WriteError(w, err)
	}
}

func (s *Site) callWorker(w http.ResponseWriter, r *http.Request, method string) error {
	token, err := s.admit(r, pb.SchedulerService_GetWorker_FullMethodName)
	if err != nil {
		return err
	}
	if !slices.Contains(workerCalls, method) {
		return edge.Refusal(codes.Unimplemented, "UNIMPLEMENTED", fmt.Sprintf(
			"%s of a worker cannot be called by HTTP, only %s: use gRPC", text.Cut(method, 200), strings.Join(workerCalls, ", ")), map[string]string{"object": method})
	}
	name := r.PathValue("worker")
	worker := s.config.Scheduler.LastSnapshot().WorkerByName(name)
	if worker == nil {
		return edge.Refusal(codes.NotFound, "UNKNOWN_WORKER", fmt.Sprintf("there is no worker %q: see ListWorkers", text.Cut(name, 200)), map[string]string{"object": name})
	}
	if worker.State == schedapi.WorkerLost {
		return edge.Refusal(codes.Unavailable, "UNKNOWN_WORKER", fmt.Sprintf("worker %q is lost: its log ended with its process; see its deaths", name), map[string]string{"object": name})
	}
	if worker.DataAddress == "" {
		return edge.Refusal(codes.Unavailable, "UNKNOWN_WORKER", fmt.Sprintf("worker %q takes no calls, since it has no address: it is one of a benchmark, which runs nothing", name), map[string]string{"object": name})
	}
	conn, err := grpc.NewClient("passthrough:///"+worker.DataAddress, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if method != pb.DataService_FollowLogs_FullMethodName {
		ctx, cancel := context.WithTimeout(r.Context(), workerTimeout)
		defer cancel()
		r = r.WithContext(ctx)
	}
	bridge.Serve(w, r, bridge.Call{Method: method, Token: token, To: conn, Until: s.config.Scheduler.Draining()})
	return nil
}
