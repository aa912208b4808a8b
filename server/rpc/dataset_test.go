package rpc

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/server/schedapi"
)

// All that a dataset holds must be readable in every language and without a worker. The error names
// the part of the value that is not, and the remedy.
func TestDatasetsHoldOnlyWhatEveryLanguageReads(t *testing.T) {
	nested := func(levels int) string {
		return strings.Repeat(`{"mapValue":{"fields":{"k":`, levels) + `{"tensorValue":{"dtype":"DTYPE_INT32","shape":["1"],"inlineData":"AAAAAA=="}}` +
			strings.Repeat(`}}}`, levels)
	}
	for name, test := range map[string]struct {
		value, field, remedy string
	}{
		"a reference":               {value: `{"input":1}`},
		"null":                      {value: `{}`},
		"plain values":              {value: `{"listValue":{"values":[{"stringValue":"s"},{"complexValue":{"real":1}},{"input":0},{"input":0}]}}`},
		"30 levels":                 {value: nested(maxValueLevels)},
		"31 levels":                 {nested(maxValueLevels + 1), `value["k"]`, "flatter"},
		"a reference to nothing":    {`{"listValue":{"values":[{"input":0},{"input":2}]}}`, "value[1]", "there are 2 keys"},
		"a pickle":                  {`{"mapValue":{"fields":{"a":{"opaqueValue":{"encoding":"pickle5","data":"AA=="}}}}}`, `value["a"]`, "scatter the object"},
		"a tensor without elements": {value: `{"tensorValue":{"dtype":"DTYPE_INT32","shape":["0"]}}`},
		"a table in a frame":        {`{"tableValue":{"buffers":[{"bytes":8}]}}`, "value", "scatter the table"},
		"a tensor in a frame":       {`{"tensorValue":{"dtype":"DTYPE_INT32","shape":["1"],"frame":0}}`, "value", "scatter the array"},
		"a long tensor":             {`{"tensorValue":{"dtype":"DTYPE_UINT8","inlineData":"` + strings.Repeat("AAAA", 22<<10) + `"}}`, "value", "scatter it"},
		"much of everything":        {`{"stringValue":"` + strings.Repeat("x", 1<<20) + `"}`, "value", "scatter the data"},
	} {
		t.Run(name, func(t *testing.T) {
			value := &pb.Value{}
			if err := protojson.Unmarshal([]byte(test.value), value); err != nil {
				t.Fatal(err)
			}
			spec, err := datasetFrom(&pb.PublishDatasetRequest{Name: "d", Keys: []string{"a", "b"}, Value: value})
			if test.field != "" {
				var refused *schedapi.Error
				if !errors.As(err, &refused) || !strings.HasPrefix(refused.Object, test.field) || !strings.Contains(refused.Message, test.remedy) {
					t.Errorf("%v, and not about %s with the remedy %q", err, test.field, test.remedy)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			whole, err := wholeDatasetTo(&schedapi.Dataset{Value: spec.Value})
			if err != nil || !proto.Equal(whole.GetValue(), value) {
				t.Errorf("%v, %v", whole.GetValue(), err)
			}
		})
	}
}

// People who type JSON need no value for a mere list of results.
func TestADatasetWithoutAValueIsTheListOfItsResults(t *testing.T) {
	spec, err := datasetFrom(&pb.PublishDatasetRequest{Name: "d", Keys: []string{"a", "b", "a"}})
	if err != nil {
		t.Fatal(err)
	}
	whole, err := wholeDatasetTo(&schedapi.Dataset{Value: spec.Value})
	if err != nil {
		t.Fatal(err)
	}
	list := whole.GetValue().GetListValue().GetValues()
	if len(list) != 3 || list[0].GetInput() != 0 || list[1].GetInput() != 1 || list[2].GetInput() != 2 {
		t.Errorf("the value is %v", whole.GetValue())
	}
}

func TestTheKeysOfADatasetFitIntoOneMessage(t *testing.T) {
	keys := make([]string, 33<<10)
	for i := range keys {
		keys[i] = strings.Repeat("k", 1024)
	}
	var refused *schedapi.Error
	if _, err := datasetFrom(&pb.PublishDatasetRequest{Name: "d", Keys: keys}); !errors.As(err, &refused) || refused.Object != "keys" {
		t.Errorf("33 MiB of keys: %v", err)
	}
}
