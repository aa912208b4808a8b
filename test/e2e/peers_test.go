package e2e

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// unusableDirectory is the exit code of a scheduler that was removed from the others, or cannot use
// its directory.
const unusableDirectory = 9

// peers is several schedulers with one journal.
type peers struct {
	*restarted
	each []*peer
}

// peer is one of several schedulers.
type peer struct {
	*started
	// own is the address for the other schedulers, client that for clients, and page that of HTTP.
	own, client, page, journal string
}

// peersAt chooses addresses for n schedulers, of which none runs.
func peersAt(t *testing.T, n int) *peers {
	t.Helper()
	r := &peers{restarted: &restarted{env: []string{"MILLRACE_TOKEN=t0ken"}}}
	var clients []string
	for range n {
		p := &peer{own: fixedAddress(t), client: fixedAddress(t), page: fixedAddress(t), journal: filepath.Join(t.TempDir(), "journal")}
		r.each, clients = append(r.each, p), append(clients, p.client)
	}
	r.addresses = strings.Join(clients, ",")
	return r
}

// withPeers starts three schedulers.
func withPeers(t *testing.T) *peers {
	t.Helper()
	r := peersAt(t, 3)
	for i := range r.each {
		r.start(t, i, 0, 1, 2)
	}
	return r
}

// list returns the value of --peers for these schedulers.
func (r *peers) list(of ...int) string {
	var list []string
	for _, i := range of {
		list = append(list, r.each[i].own)
	}
	return strings.Join(list, ",")
}

// start starts a scheduler whose --peers has these schedulers.
func (r *peers) start(t *testing.T, i int, of ...int) {
	t.Helper()
	p := r.each[i]
	p.started = background(t, r.env, "scheduler", "--listen", p.client, "--http", p.page, "--journal", p.journal, "--peers", r.list(of...), "--peer-advertise", p.own)
	within(t, "the scheduler is ready", func() bool { return strings.Contains(p.log.String(), "\nready") })
}

func (r *peers) kill(t *testing.T, i int) {
	t.Helper()
	if err := r.each[i].cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-r.each[i].ended
}

func (p *peer) isEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// leader returns the scheduler that leads.
func (r *peers) leader(t *testing.T) (leads int) {
	t.Helper()
	within(t, "a scheduler leads", func() bool {
		for i, p := range r.each {
			answer, err := http.Get("http://" + p.page + "/readyz")
			if err != nil {
				continue
			}
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				leads = i
				return true
			}
		}
		return false
	})
	return leads
}

// The machine of the leader is lost in the middle of a graph, and another scheduler goes on. Then
// that one is lost, too, after the first one is back. All that was acknowledged is there each time.
func TestAGraphOutlivesTheLeader(t *testing.T) {
	t.Parallel()
	r := withPeers(t)
	c := r.dial(t)
	r.workers(t, c)
	var data *millrace.Future
	var err error
	// On a busy machine another scheduler may lead at once, before the workers are back.
	within(t, "data is scattered", func() bool {
		data, err = c.Scatter(soon(t), strings.Repeat("s", 100_000))
		return err == nil
	})
	lock := c.Lock("held")
	if err := lock.Acquire(soon(t)); err != nil {
		t.Fatal(err)
	}
	const parts, rounds = 8, 2
	var inputs, sums []*millrace.Future
	for i := range parts {
		inputs = append(inputs, submitted(t, c, millrace.Native("array.full"), fmt.Sprint("part", i), []int{20_000}, float64(i)))
	}
	for _, f := range inputs {
		if _, err := f.Array(soon(t)); err != nil {
			t.Fatal(err)
		}
	}
	for round := range rounds {
		running := occupied(t, c, fmt.Sprint("busy", round))
		sums = sums[:0]
		for i, f := range inputs {
			sums = append(sums, submitted(t, c, millrace.Python("operator:add"), fmt.Sprintf("sum%d-%d", round, i), f, inputs[(i+1)%parts]))
		}
		name := fmt.Sprint("last-", round)
		published(t, c, name, sums[0])
		led := r.leader(t)
		r.kill(t, led)
		within(t, "the dataset is there again", func() bool {
			_, err := c.Dataset(soon(t), name)
			if err != nil && !errors.Is(err, millrace.ErrUnavailable) {
				t.Fatalf("round %d: the published dataset: %v", round, err)
			}
			return err == nil
		})
		running.ends(t)
		for i, f := range sums {
			a, err := f.Array(soon(t))
			if err != nil {
				t.Fatal(err)
			}
			values, err := millrace.Slice[float64](a)
			if want := float64(i + (i+1)%parts); err != nil || len(values) != 20_000 || values[0] != want || values[19_999] != want {
				t.Errorf("round %d: sum %d has %d elements and is not %v: %v", round, i, len(values), want, err)
			}
		}
		if got, err := millrace.Get[string](soon(t), data); err != nil || len(got) != 100_000 {
			t.Errorf("round %d: of what was scattered came %d bytes, %v", round, len(got), err)
		}
		if next := r.leader(t); next == led {
			t.Errorf("round %d: the scheduler that was killed leads", round)
		}
		r.start(t, led, 0, 1, 2)
	}
	if err := lock.Release(soon(t)); err != nil {
		t.Error(err)
	}
	if err := c.Shutdown(soon(t), "the test ends"); err != nil {
		t.Fatal(err)
	}
	for i, s := range r.each {
		within(t, fmt.Sprint("scheduler ", i, " ends with the cluster"), s.isEnded)
		if code := s.cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("scheduler %d ends with code %d", i, code)
		}
	}
}

// published publishes a result. On a busy machine another scheduler may lead at any time, and
// nobody may know then whether the result is published.
func published(t *testing.T, c *millrace.Client, name string, of *millrace.Future) {
	t.Helper()
	again := false
	within(t, "the dataset "+name+" is published", func() bool {
		err := c.Publish(soon(t), name, of, again)
		if err != nil && !errors.Is(err, millrace.ErrUnavailable) {
			t.Fatalf("publish %s: %v", name, err)
		}
		again = true
		return err == nil
	})
}

// roles returns what the command says of each scheduler, by the address for the others.
func (r *peers) roles(t *testing.T) map[string]string {
	t.Helper()
	cmd := exec.CommandContext(soon(t), binary, "peers", "list")
	cmd.Env = r.commandEnv()
	out, _ := cmd.Output() // Its connection may end while a scheduler does.
	found := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if words := strings.Fields(line); len(words) > 2 && words[0] != "ADDRESS" {
			found[words[0]] = words[2]
		}
	}
	return found
}

// have returns whether as many schedulers as wanted have each role.
func (r *peers) have(t *testing.T, want map[string]int) func() bool {
	t.Helper()
	return func() bool {
		found := map[string]int{}
		for _, role := range r.roles(t) {
			found[role]++
		}
		return maps.Equal(found, want)
	}
}

func (r *peers) commandEnv() []string {
	return environment(append(r.env, "MILLRACE_ADDRESS="+r.addresses)...)
}

// The command lists the schedulers, adds one that has not been started, and removes it. When two
// are lost and nobody leads, the third one tells.
func TestPeersAreListedWhileNobodyLeads(t *testing.T) {
	t.Parallel()
	r := withPeers(t)
	all := map[string]int{"LEADER": 1, "FOLLOWER": 2}
	within(t, "two follow one", r.have(t, all))
	fourth := fixedAddress(t)
	succeeds(t, r.commandEnv(), "", "peers", "add", fourth)
	within(t, "the new one is awaited", func() bool { return r.roles(t)[fourth] == "AWAY" })
	succeeds(t, r.commandEnv(), "", "peers", "remove", fourth)
	within(t, "it is gone", r.have(t, all))
	led := r.leader(t)
	r.kill(t, led)
	r.kill(t, (led+1)%3)
	within(t, "two are away", r.have(t, map[string]int{"AWAY": 2, "FOLLOWER": 1}))
}

// A scheduler alone becomes the first of three in the middle of a graph. When the others vote, it
// is killed, and comes back. The leader is removed while it runs, and another one joins. Then one
// of the three is lost, so that the new one is needed. All that was acknowledged is there each
// time.
func TestOneSchedulerBecomesThreeAndIsReplaced(t *testing.T) {
	t.Parallel()
	r := peersAt(t, 4)
	first := r.each[0]
	first.started = background(t, r.env, "scheduler", "--listen", first.client, "--http", first.page, "--journal", first.journal)
	within(t, "the scheduler alone is ready", func() bool { return strings.Contains(first.log.String(), "\nready") })
	c := r.dial(t)
	r.workers(t, c)
	data, err := c.Scatter(soon(t), strings.Repeat("s", 100_000))
	if err != nil {
		t.Fatal(err)
	}
	lock, queue := c.Lock("held"), c.Queue("values", 0)
	if err := lock.Acquire(soon(t)); err != nil {
		t.Fatal(err)
	}
	fence := lock.Fence()
	var inputs, sums []*millrace.Future
	var want []float64
	var running *busy
	// step acknowledges something of each kind while a task runs.
	step := func(name string) {
		t.Helper()
		running = occupied(t, c, "busy-"+name)
		n := len(inputs)
		inputs = append(inputs, submitted(t, c, millrace.Native("array.full"), "input-"+name, []int{20_000}, float64(n)))
		for i, f := range inputs {
			sums = append(sums, submitted(t, c, millrace.Python("operator:add"), fmt.Sprintf("sum-%s-%d", name, i), f, inputs[n]))
			want = append(want, float64(i+n))
		}
		published(t, c, name, sums[len(sums)-1])
		if err := queue.Put(soon(t), name); err != nil {
			t.Fatal(err)
		}
	}
	// check looks for what the step of this name has acknowledged.
	check := func(name string) {
		t.Helper()
		within(t, "the dataset is there", func() bool {
			_, err := c.Dataset(soon(t), name)
			if err != nil && !errors.Is(err, millrace.ErrUnavailable) {
				t.Fatalf("%s: the published dataset: %v", name, err)
			}
			return err == nil
		})
		running.ends(t)
		for i, f := range sums {
			a, err := f.Array(soon(t))
			if err != nil {
				t.Fatalf("%s: sum %d: %v", name, i, err)
			}
			values, err := millrace.Slice[float64](a)
			if err != nil || len(values) != 20_000 || values[0] != want[i] {
				t.Errorf("%s: sum %d has %d elements and is not %v: %v", name, i, len(values), want[i], err)
			}
		}
		if got, err := millrace.Get[string](soon(t), data); err != nil || len(got) != 100_000 {
			t.Errorf("%s: of what was scattered came %d bytes, %v", name, len(got), err)
		}
		if got, err := queue.Take(soon(t)); err != nil || got != name {
			t.Errorf("%s: the queue gave %v, %v", name, got, err)
		}
	}
	all := map[string]int{"LEADER": 1, "FOLLOWER": 2}

	step("alone")
	if err := first.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-first.ended
	succeeds(t, r.commandEnv(), "", "peers", "bootstrap", first.journal, "--peers", r.list(0, 1, 2), "--peer-advertise", first.own)
	for i := range 3 {
		r.start(t, i, 0, 1, 2)
	}
	check("alone")
	within(t, "the two that came vote", r.have(t, all))

	step("three")
	r.kill(t, 0)
	check("three")
	r.start(t, 0, 0, 1, 2)
	within(t, "the one that was lost is back", r.have(t, all))
	led := r.leader(t)
	succeeds(t, r.commandEnv(), "", "peers", "remove", r.each[led].own)
	within(t, "the one that was removed ends", r.each[led].isEnded)
	if text := r.each[led].log.String(); !strings.Contains(text, "was removed from the peers") {
		t.Errorf("the one that was removed wrote:\n%s", text)
	}
	if code := r.each[led].cmd.ProcessState.ExitCode(); code != unusableDirectory {
		t.Errorf("the one that was removed ends with code %d", code)
	}
	succeeds(t, r.commandEnv(), "", "peers", "add", r.each[3].own)
	left := (led + 1) % 3
	r.start(t, 3, left, (led+2)%3, 3)
	within(t, "the new one votes", r.have(t, all))

	step("replaced")
	if led = r.leader(t); led == 3 {
		led = left
	}
	r.kill(t, led)
	check("replaced")
	if lock.Fence() != fence {
		t.Errorf("the fencing number of the lock was %d, and is %d", fence, lock.Fence())
	}
	if err := lock.Release(soon(t)); err != nil {
		t.Error(err)
	}
}

// The leader is stopped for longer than its lease, and another one leads. Calls, streams and pages
// that wait in the sockets of the first one then are refused, or know what the other one has
// accepted.
func TestAStoppedLeaderTellsNothingOld(t *testing.T) {
	t.Parallel()
	r := withPeers(t)
	c := r.dial(t)
	ctx := soon(t)
	set := func(value string) {
		t.Helper()
		within(t, "the variable is set", func() bool { return c.SetVariable(ctx, "v", value) == nil })
	}
	set("old")
	var conns []*grpc.ClientConn
	for _, p := range r.each {
		conn, err := grpc.NewClient("passthrough:///"+p.client, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() }) // Its calls have ended.
		conns = append(conns, conn)
	}
	led := 0
	get := func() (*millracev1.GetVariableResponse, error) {
		return millracev1.NewCoordinationServiceClient(conns[led]).GetVariable(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer t0ken"), &millracev1.GetVariableRequest{Name: "v"})
	}
	// The life of the scheduler changes with the leader.
	watch := func() (life uint64, err error) {
		stream, err := millracev1.NewSchedulerServiceClient(conns[led]).Watch(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer t0ken"), &millracev1.WatchRequest{Graphs: true})
		if err != nil {
			return 0, err
		}
		message, err := stream.Recv()
		return message.GetLife(), err
	}
	pages := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	page := func() (text string, err error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.each[led].page+"/api/session", nil)
		if err != nil {
			return "", err
		}
		request.Header.Set("Authorization", "Bearer t0ken")
		answer, err := pages.Do(request)
		if err != nil {
			return "", err
		}
		defer func() { _ = answer.Body.Close() }() // All of it was read.
		body, err := io.ReadAll(answer.Body)
		return string(body), err
	}
	var before *millracev1.GetVariableResponse
	var life uint64
	var session string
	within(t, "the leader tells what there is", func() (told bool) {
		led = r.leader(t)
		var errs [3]error
		before, errs[0] = get()
		life, errs[1] = watch()
		session, errs[2] = page()
		return errors.Join(errs[:]...) == nil && before.GetFound() && life != 0 && strings.Contains(session, fmt.Sprint(life))
	})
	process := r.each[led].cmd.Process
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// Until all of its threads stand still, it may rightly tell the old value.
	for {
		err := unix.Waitid(unix.P_PID, process.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
	}
	var waiting sync.WaitGroup
	for range 200 {
		waiting.Go(func() {
			if got, err := get(); err == nil && proto.Equal(got.GetValue(), before.GetValue()) {
				t.Error("a leader that was stopped tells the old value")
			}
		})
	}
	for range 50 {
		waiting.Go(func() {
			if got, err := watch(); err == nil && got == life {
				t.Error("a stream of a leader that was stopped tells what was before")
			}
		})
		waiting.Go(func() {
			if got, err := page(); err == nil && got == session {
				t.Error("a page of a leader that was stopped tells what was before")
			}
		})
	}
	set("new")
	if err := process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	waiting.Wait()
}
