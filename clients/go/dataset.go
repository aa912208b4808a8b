package millrace

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// Publish gives a value a name, and keeps the results of the futures in it until Unpublish,
// independent of this client. The value is one that Args accepts, at most 1 MiB when encoded: a
// *Future or Key, or lists and string-keyed maps of futures, numbers, texts and small Arrays. Every
// client of the namespace can read it with Dataset, in any language. replace allows Publish to
// replace a dataset of the same name.
func (c *Client) Publish(ctx context.Context, name string, value any, replace bool) error {
	var in inputList
	encoded, err := appendValue(nil, value, &in)
	if err == nil && len(encoded) > maxDatasetBytes {
		err = fmt.Errorf("the value takes %.1f MB, the limit is %.1f MB: Scatter what is large and publish its Future",
			float64(len(encoded))/1e6, float64(maxDatasetBytes)/1e6)
	}
	request := &millracev1.PublishDatasetRequest{ClientId: c.lease.Load(), Name: name, Value: new(millracev1.Value), Keys: in.keys, Replace: replace}
	if err == nil {
		err = proto.Unmarshal(encoded, request.Value)
	}
	if err != nil {
		return fmt.Errorf("millrace: dataset %q: %w", name, err)
	}
	for _, f := range in.futures {
		if f.client != c {
			return fmt.Errorf("millrace: dataset %q: future %q belongs to another client: publish it there, or pass its Key", name, f.key)
		}
	}
	if _, err := c.acknowledged(ctx, in.futures); err != nil {
		return err
	}
	if request.ClientId == 0 {
		request.Namespace = c.config.namespace
	}
	_, err = c.service.PublishDataset(ctx, request)
	return callError(ctx, "PublishDataset", err)
}

// Dataset returns a published value: nil, bool, int64, float64, complex128, string, []byte, []any,
// map[string]any or Array, with a *Future of this client for each result. Release the futures when
// they are not needed.
func (c *Client) Dataset(ctx context.Context, name string) (any, error) {
	out, err := c.service.GetDataset(ctx, &millracev1.GetDatasetRequest{Name: name, Namespace: c.config.namespace})
	if err != nil {
		return nil, callError(ctx, "GetDataset", err)
	}
	r := resultReader{room: strideRoom}
	if keys := out.GetDataset().GetKeys(); len(keys) > 0 {
		if r.inputs, err = c.HoldKeys(ctx, keys...); err != nil {
			return nil, err
		}
	}
	value, err := r.value(out.GetDataset().GetValue())
	if err != nil {
		c.Release(r.inputs...)
		return nil, fmt.Errorf("dataset %q: %w", name, err)
	}
	return value, nil
}

// Datasets lists the datasets of the client's namespace, without their keys and values.
func (c *Client) Datasets(ctx context.Context) ([]*millracev1.Dataset, error) {
	in := &millracev1.ListDatasetsRequest{PageSize: pageSize, Namespace: c.config.namespace}
	var all []*millracev1.Dataset
	for {
		out, err := c.service.ListDatasets(ctx, in)
		if err != nil {
			return nil, callError(ctx, "ListDatasets", err)
		}
		all = append(all, out.GetDatasets()...)
		if in.PageToken = out.GetNextPageToken(); in.PageToken == "" {
			return all, nil
		}
	}
}

// Unpublish removes a dataset's name and gives up its hold on the results.
func (c *Client) Unpublish(ctx context.Context, name string) error {
	_, err := c.service.UnpublishDataset(ctx, &millracev1.UnpublishDatasetRequest{Name: name, Namespace: c.config.namespace})
	return callError(ctx, "UnpublishDataset", err)
}
