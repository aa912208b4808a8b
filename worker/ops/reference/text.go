package reference

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace/worker/ops"
)

// link matches a link to another page of docs.
var link = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)

// columns is the width of texts.
const columns = 100

const intro = `# Native operations

A worker runs these operations itself, without Python. ` + "`make gen`" + ` writes this page from the registry
in ` + "`worker/ops`" + `. ` + "`millrace get ops NAME`" + ` prints the same texts, ` + "`millrace get ops -o json`" + ` prints
them for programs.

A task names its operation, and gives arguments by position or by name. A parameter that stands
behind ` + "`*`" + ` in the call is given by name only. Null for a parameter with a default means the default.

    client.op("array.reduce", x, "mean", axes=0)                                              # Python
    c.Submit(ctx, millrace.Native("array.reduce"), millrace.Args(x, "mean").With("axes", 0))  // Go

Each operation below has an example for ` + "`millrace submit -f FILE`" + `. ` + "`millrace get result KEY`" + ` then
prints the result of a task. An argument ` + "`{\"input\": KEY}`" + ` is the result of another task. In a
request for ` + "`grpcurl`" + `, each value names its type; the [README](../README.md) has an example.
`

const results = `## Results

A result is a new object: it never shares memory with an argument. Its tensors are contiguous, in C
order. Dtypes are promoted as in NumPy 2, unless the operation says otherwise.

## GPUs

Workers on a GPU have all operations, with the same results;
[gpu-operations.md](gpu-operations.md) says how well they agree. Some need libraries of CUDA, which
stand at the operation. The conversion of an argument to another dtype needs ` + "`libnvrtc`" + `. The
processor computes what the GPU has no kernel for, on a copy of the arguments.

## Errors

| reason | meaning |
|---|---|
| ` + "`UNKNOWN_OP`" + ` | no worker has the operation; the submission is refused, and the text names similar operations |
| ` + "`INVALID_ARGUMENT`" + ` | the call can never succeed as it is; the text names the argument and what is expected |
| ` + "`OP_FAILED`" + ` | the operation ran and could not finish, or lacks a library |
| ` + "`OUT_OF_MEMORY`" + ` | there is no room for the result, or for working memory |
| ` + "`RESULT_TOO_LARGE`" + ` | the result has too many values that are not in tensors |

Such a task fails, after the retries that its options allow. The errors below are those worth
knowing besides arguments of a wrong type or out of the given limits.
`

// Page returns the page docs/ops.md.
func Page() string {
	all := All()
	var b strings.Builder
	b.WriteString(intro + "\n| operation | runs on | |\n|---|---|---|\n")
	for _, o := range all {
		fmt.Fprintf(&b, "| [%s](#%s) | %s | %s |\n", o.Name, strings.ReplaceAll(o.Name, ".", ""), o.RunsOn(), cell(o.Doc))
	}
	b.WriteString("\n## Arguments\n\n| type | values |\n|---|---|\n")
	for _, t := range ops.Types() {
		fmt.Fprintf(&b, "| %s | %s |\n", t.Type, cell(t.Doc))
	}
	b.WriteString("\n" + results)
	for _, o := range all {
		o.section(&b)
	}
	return b.String()
}

func (o *Op) section(b *strings.Builder) {
	fmt.Fprintf(b, "\n## %s\n\n%s\n\n    %s\n", o.Name, wrap(o.Doc, "", ""), o.Signature)
	if len(o.Parameters) > 0 {
		b.WriteString("\n| argument | type | default | |\n|---|---|---|---|\n")
	}
	for _, p := range o.Parameters {
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", p.written(), p.Type, p.defaultText, cell(p.Doc))
	}
	for paragraph := range strings.SplitSeq(o.Details, "\n\n") {
		if paragraph != "" {
			b.WriteString("\n" + wrap(paragraph, "", "") + "\n")
		}
	}
	b.WriteString("\n" + wrap("Result: "+o.Result+".", "- ", "  ") + "\n")
	b.WriteString(wrap("Runs on: "+o.place()+".", "- ", "  ") + "\n")
	for _, e := range o.Errors {
		b.WriteString(wrap("Error: "+e+".", "- ", "  ") + "\n")
	}
	fmt.Fprintf(b, "\n```json\n%s\n```\n", o.Example.text)
	if o.Example.Result != nil {
		fmt.Fprintf(b, "\nThe result:\n\n```json\n%s\n```\n", o.Example.Result)
	}
}

// Text returns the description of an operation for a terminal.
func (o *Op) Text() string {
	const indent = "    "
	var b strings.Builder
	b.WriteString(o.Signature + "\n\n" + wrap(o.Doc, "", "") + "\n")
	for paragraph := range strings.SplitSeq(o.Details, "\n\n") {
		if paragraph != "" {
			b.WriteString("\n" + wrap(link.ReplaceAllString(paragraph, "docs/$1"), "", "") + "\n")
		}
	}
	if len(o.Parameters) > 0 {
		b.WriteString("\nArguments:\n")
	}
	for _, p := range o.Parameters {
		fmt.Fprintf(&b, "  %s: %s", p.written(), p.Type)
		switch {
		case p.Required:
			b.WriteString(", required")
		case p.defaultText != "":
			b.WriteString(", default " + strings.Trim(p.defaultText, "`"))
		}
		b.WriteString("\n" + wrap(p.Doc, indent, indent) + "\n")
	}
	b.WriteString("\nResult:\n" + wrap(o.Result, indent, indent) + "\n")
	b.WriteString("\nRuns on:\n" + wrap(o.place(), indent, indent) + "\n")
	if len(o.Errors) > 0 {
		b.WriteString("\nErrors:\n")
	}
	for _, e := range o.Errors {
		b.WriteString(wrap(e, "  - ", indent) + "\n")
	}
	b.WriteString("\nExample:\n" + o.Example.text + "\n")
	if o.Example.Result != nil {
		b.WriteString("\nIts result:\n" + string(o.Example.Result) + "\n")
	}
	return b.String()
}

// cell makes a text fit for a cell of a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

// wrap breaks a paragraph into lines, but not within code. The first line begins with first, the
// others with rest.
func wrap(text, first, rest string) string {
	var b strings.Builder
	b.WriteString(first)
	used, begun := utf8.RuneCountInString(first), false
	for _, word := range words(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case begun && used+1+n > columns:
			b.WriteString("\n" + rest)
			used = utf8.RuneCountInString(rest)
		case begun:
			b.WriteByte(' ')
			used++
		}
		b.WriteString(word)
		used, begun = used+n, true
	}
	return b.String()
}

// words splits a text at spaces that are not within code.
func words(text string) []string {
	code := false
	return strings.FieldsFunc(text, func(r rune) bool {
		if r == '`' {
			code = !code
		}
		return r == ' ' && !code
	})
}
