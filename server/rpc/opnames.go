package rpc

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/server/schedapi"
)

// maxSuggestions bounds the names that an error suggests.
const maxSuggestions = 3

// checkNative refuses native ops that no worker has named. While no op is known at all it accepts
// every name.
func (s *submission) checkNative(name string) error {
	if name == "" {
		return invalid("name", "a native op needs a name, like \"array.reduce\"")
	}
	if len(s.native) == 0 {
		return nil
	}
	if _, known := slices.BinarySearch(s.native, name); known {
		return nil
	}
	message := fmt.Sprintf("there is no native op %q", name)
	similar := similarNames(name, s.native)
	if len(similar) > 0 {
		message += "; similar names are " + strings.Join(similar, ", ")
	}
	message += fmt.Sprintf(" (all %d: GetClusterInfo; a Python function is written as \"package.module:function\")", len(s.native))
	return &schedapi.Error{Kind: schedapi.ErrUnknownOp, Object: name, Message: message,
		Metadata: map[string]string{"similar": strings.Join(similar, ",")}}
}

// similarNames returns up to maxSuggestions names that the caller may have meant, best first.
func similarNames(name string, known []string) []string {
	type candidate struct {
		name     string
		distance int
	}
	var similar []candidate
	_, last, _ := strings.Cut(name, ".")
	for _, other := range known {
		distance := spelling.Distance(strings.ToLower(name), other)
		if _, tail, _ := strings.Cut(other, "."); tail != "" && (tail == name || tail == last) {
			distance = 1
		}
		if distance <= max(2, len(name)/3) {
			similar = append(similar, candidate{other, distance})
		}
	}
	slices.SortStableFunc(similar, func(a, b candidate) int { return a.distance - b.distance })
	var names []string
	for _, c := range similar[:min(len(similar), maxSuggestions)] {
		names = append(names, c.name)
	}
	return names
}
