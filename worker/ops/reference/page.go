//go:build ignore

// It prints docs/ops.md, for tools/gen.
package main

import (
	"fmt"

	"github.com/millrace/millrace/worker/ops/reference"
)

func main() { fmt.Print(reference.Page()) }
