package bench

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"

	millrace "github.com/millrace/millrace/clients/go"
)

// viewedTopics are the topics of the dashboard's overview, task stream and routes.
const viewedTopics = "summary,workers,graphs,events,alarms,runs,routes"

// view opens streams of the cluster's dashboard, as its pages do, and reads them until stop is
// called. stop returns the bytes that they brought, and an error if one of them ended before.
func (c *Cluster) view(ctx context.Context, viewers int) (stop func() (int64, error), err error) {
	file, err := millrace.ReadSchedulerFile(c.File)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var readers sync.WaitGroup
	moved, failed := make([]int64, viewers), make([]error, viewers)
	for i := range viewers {
		body, err := openStream(ctx, "http://"+file.HTTP+"/api/stream?topics="+viewedTopics, file.Token)
		if err != nil {
			cancel()
			readers.Wait()
			return nil, err
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
			if sum += moved[i]; failed[i] != nil {
				err = failed[i]
			}
		}
		return sum, err
	}, nil
}

func openStream(ctx context.Context, address, token string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("bench: a stream of the dashboard: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		_ = response.Body.Close() // nothing was written
		return nil, fmt.Errorf("bench: a stream of the dashboard: %s", response.Status)
	}
	return response.Body, nil
}
