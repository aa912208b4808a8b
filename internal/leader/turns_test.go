package leader

import (
	"encoding/json"
	"os"
	"slices"
	"testing"
)

// TestTurns: the Python client goes from address to address as Go does. Its tests have the same
// table.
func TestTurns(t *testing.T) {
	data, err := os.ReadFile("testdata/turns.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Name      string
		Addresses []string
		Left      [][2]any
		Then      []int
	}
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	for _, tc := range cases {
		var got []int
		turns := turns{addresses: tc.Addresses}
		for _, left := range tc.Left {
			turns.leave(int(left[0].(float64)), left[1].(string))
			got = append(got, turns.current())
		}
		if !slices.Equal(got, tc.Then) {
			t.Errorf("%s: %v, want %v", tc.Name, got, tc.Then)
		}
	}
}
