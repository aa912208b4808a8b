// Command millrace is the only binary of Millrace: scheduler, worker, and the tools that operate
// them.
package main

import (
	"os"

	"github.com/millrace/millrace/cmd/millrace/cli"
)

func main() { os.Exit(cli.Main(cli.Guard(os.Args[1:]))) }
