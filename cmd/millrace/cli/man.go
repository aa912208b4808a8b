package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/millrace/millrace/internal/version"
)

func (a *app) man() *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "Write the man pages of all commands", Args: exactly(1),
		Long: `Writes a man page for each command into DIR, which it makes if need be:

  millrace man ~/.local/share/man/man1
  man millrace-get`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fmt.Errorf("man: %w", err)
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true // No line with the day at the end.
			if err := doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "millrace " + version.String(), Manual: "Millrace"}, args[0]); err != nil {
				return fmt.Errorf("man: %w", err)
			}
			_, err := fmt.Fprintln(a.out, plain("wrote the man pages to "+args[0]))
			return err
		},
	}
}
