package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
)

// Limits for the sizes of files. A name may be that of a device, which can be read without end.
const (
	mostConfiguration = 1 << 20
	mostToken         = 64 << 10
	mostGraph         = 256 << 20
)

// readFile reads a file of at most the given size. "-" is standard input where that is allowed.
func readFile(name string, most int64, standardInput bool) ([]byte, error) {
	file := os.Stdin
	if name != "-" || !standardInput {
		var err error
		if file, err = os.Open(name); err != nil {
			return nil, err
		}
		defer file.Close()
	}
	text, err := io.ReadAll(io.LimitReader(file, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s: it has more than %s: is that the file that you mean?", name, humanize.IBytes(uint64(most)))
	}
	return text, err
}

// noArgs, exactly, atLeast and between check the number of arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 || cmd.HasSubCommands() {
		return usage(cobra.NoArgs(cmd, args))
	}
	return usageError{fmt.Errorf("%s takes flags only, and got %q: see `%[1]s --help`", cmd.CommandPath(), args[0])}
}

func between(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if least <= len(args) && len(args) <= most {
			return nil
		}
		return usageError{fmt.Errorf("%s got %d arguments: it is written as `%s`", cmd.CommandPath(), len(args), cmd.UseLine())}
	}
}

func exactly(n int) cobra.PositionalArgs { return between(n, n) }

func atLeast(n int) cobra.PositionalArgs { return between(n, 1<<30) }

func usage(err error) error {
	if err != nil {
		return usageError{err}
	}
	return nil
}

// undecoded describes a fault in the text of a graph, without names of this program's types.
func undecoded(err error) error {
	const remedy = "see `millrace submit --help` for how a graph is written"
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		expected := map[reflect.Kind]string{reflect.Struct: "a mapping", reflect.Map: "a mapping", reflect.Slice: "a list", reflect.String: "a text"}[wrong.Type.Kind()]
		if expected == "" {
			expected = "a " + wrong.Type.Kind().String()
		}
		where := wrong.Field
		if where == "" {
			where = "the file"
		}
		return fmt.Errorf("%s has the form of %s, and %s is expected: %s", where, wrong.Value, expected, remedy)
	}
	text := err.Error()
	for _, layer := range []string{"error unmarshaling JSON: ", "while decoding JSON: ", "error converting YAML to JSON: ", "json: ", "yaml: "} {
		text = strings.TrimPrefix(text, layer)
	}
	return fmt.Errorf("%s: %s", text, remedy)
}
