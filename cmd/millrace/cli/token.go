package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	millrace "github.com/millrace/millrace/clients/go"
	"github.com/millrace/millrace/internal/access"
	"github.com/millrace/millrace/internal/roletoken"
)

func (a *app) roleToken() *cobra.Command {
	return &cobra.Command{
		Use: "token read-only", Short: "Print a token that allows to read, and nothing else", Args: exactly(1),
		ValidArgs: []string{string(access.Reader)},
		Long: `Prints the token of the role "read-only" for people and programs that only look, for example at the dashboard. It is derived
from the token of the operator, which --token, --token-file or the scheduler file has, and stays the same as long as that
does. It needs no cluster that runs.`,
		RunE: func(_ *cobra.Command, args []string) error {
			if args[0] != string(access.Reader) {
				return usageError{fmt.Errorf("role %q: only tokens of the role %s are given out", args[0], access.Reader)}
			}
			token, err := a.operatorToken()
			if err != nil {
				return err
			}
			if token == "" {
				return usageError{errors.New("there is no token to derive one from: give the operator's token in --token-file, or the cluster's --scheduler-file")}
			}
			_, err = fmt.Fprintln(a.out, roletoken.Reader(token))
			return err
		},
	}
}

// operatorToken returns the token of the cluster that the settings name.
func (a *app) operatorToken() (string, error) {
	if err := a.useContext(); err != nil {
		return "", err
	}
	if file := a.settings.String("scheduler-file"); file != "" && a.settings.String("address") == "" {
		f, err := millrace.ReadSchedulerFile(file)
		return f.Token, err
	}
	return a.token()
}
