package cli

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/gen/protos"
)

const protosHelp = `Writes the .proto files of the API below DIR, for programs in other languages: clients, and executors. The folders are those
of the packages, so DIR is what protoc takes as -I:

  millrace protos api
  protoc -I api --java_out=src api/millrace/v1/*.proto api/millrace/executor/v1/*.proto

The files need nothing but the types that protoc brings. Files of the same names are replaced; nothing else in DIR is touched.`

func (a *app) protos() *cobra.Command {
	return &cobra.Command{
		Use: "protos DIR", Short: "Write the .proto files of the API", Long: protosHelp, Args: exactly(1),
		RunE: func(_ *cobra.Command, args []string) error { return a.writeProtos(args[0]) },
	}
}

func (a *app) writeProtos(dir string) error {
	var written, packages []string
	err := fs.WalkDir(protos.Files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := protos.Files.ReadFile(name)
		if err != nil {
			return err
		}
		to := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return fmt.Errorf("protos: %w", err)
		}
		if err := os.WriteFile(to, text, 0o644); err != nil {
			return fmt.Errorf("protos: %w", err)
		}
		written = append(written, to)
		packages = append(packages, filepath.Dir(to))
		return nil
	})
	if err != nil {
		return err
	}
	packages = slices.Compact(packages)
	for _, p := range packages {
		// Another version may have left files that this one does not have.
		entries, err := os.ReadDir(p)
		if err != nil {
			return fmt.Errorf("protos: %w", err)
		}
		for _, e := range entries {
			if other := filepath.Join(p, e.Name()); filepath.Ext(other) == ".proto" && !slices.Contains(written, other) {
				_, _ = fmt.Fprintln(a.err, plain("warning: "+other+" is not of this version: remove it, unless it is yours"))
			}
		}
	}
	_, err = fmt.Fprintln(a.out, plain(fmt.Sprintf("wrote %d files: %s", len(written), strings.Join(packages, ", "))))
	return err
}
