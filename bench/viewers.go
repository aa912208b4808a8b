package bench

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	millrace "github.com/millrace/millrace/clients/go"
	"github.com/millrace/millrace/internal/pause"
)

const (
	// frameTopics are those that every page reads.
	frameTopics = "summary,workers,graphs,events,alarms"
	// The overview looks so often at the latest attempts, and at running tasks.
	lookEvery    = 4 * time.Second
	lookAttempts = 2000
	lookRunning  = 64
)

// viewedPage is one page of the dashboard, and what it asks of the scheduler.
type viewedPage struct {
	topics string
	// looks: it also asks for attempts and tasks, again and again.
	looks bool
}

// viewedPages are the overview, the task stream and the routes: the pages of web/ that cost most.
var viewedPages = []viewedPage{{frameTopics, true}, {frameTopics + ",runs", false}, {frameTopics + ",routes", false}}

// view opens pages of the cluster's dashboard, and reads what they read until stop is called. stop
// returns the bytes that the streams brought, and an error if a page has ended before.
func (c *Cluster) view(ctx context.Context, viewers int) (stop func() (int64, error), err error) {
	file, err := millrace.ReadSchedulerFile(c.File)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var readers sync.WaitGroup
	moved, failed, looked := make([]int64, viewers), make([]error, viewers), make([]error, viewers)
	site := "http://" + file.HTTP + "/api/"
	for i := range viewers {
		page := viewedPages[i%len(viewedPages)]
		body, err := openStream(ctx, site+"stream?topics="+page.topics, file.Token)
		if err != nil {
			cancel()
			readers.Wait()
			return nil, err
		}
		if page.looks {
			readers.Go(func() { looked[i] = look(ctx, site, file.Token) })
		}
		readers.Go(func() {
			moved[i], failed[i] = io.Copy(io.Discard, body)
			_ = body.Close() // nothing was written
			if ctx.Err() == nil {
				failed[i] = fmt.Errorf("bench: stream %d of the dashboard ended: %w", i, failed[i])
			} else {
				failed[i] = nil
			}
		})
	}
	return func() (sum int64, err error) {
		cancel()
		readers.Wait()
		for i := range viewers {
			sum += moved[i]
			err = cmp.Or(err, failed[i], looked[i])
		}
		return sum, err
	}, nil
}

// look asks for the latest attempts and the running tasks until the context ends, as the overview
// does to say why tasks take long.
func look(ctx context.Context, site, token string) error {
	running := fmt.Sprintf(`{"states": ["TASK_STATE_RUNNING"], "pageSize": %d}`, lookRunning)
	for {
		var group errgroup.Group
		group.Go(func() error {
			return ask(ctx, http.MethodGet, fmt.Sprintf("%sruns?limit=%d", site, lookAttempts), "", token)
		})
		group.Go(func() error {
			return ask(ctx, http.MethodPost, site+"millrace.v1.SchedulerService/ListTasks", running, token)
		})
		err := group.Wait()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if pause.For(ctx, lookEvery) != nil {
			return nil
		}
	}
}

// ask sends a request of a page, and reads the answer to its end.
func ask(ctx context.Context, method, address, body, token string) error {
	answer, err := send(ctx, method, address, body, token)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Close() }() // nothing was written
	_, err = io.Copy(io.Discard, answer)
	return err
}

func openStream(ctx context.Context, address, token string) (io.ReadCloser, error) {
	return send(ctx, http.MethodGet, address, "", token)
}

// send returns the body of the answer to a request of a page.
func send(ctx context.Context, method, address, body, token string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("bench: a page of the dashboard: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		_ = response.Body.Close() // nothing was written
		return nil, fmt.Errorf("bench: a page of the dashboard: %s: %s", address, response.Status)
	}
	return response.Body, nil
}
