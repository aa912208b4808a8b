package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/hostport"
	"github.com/millrace/millrace/internal/roletoken"
	"github.com/millrace/millrace/server"
	"github.com/millrace/millrace/server/journal"
	"github.com/millrace/millrace/server/replica"
)

func replicaFlags(f *pflag.FlagSet) {
	f.StringSlice("replicas", nil, "addresses, host:port, at which three or five schedulers with one journal reach each other, the same list for all of them; needs --replica, --journal and --token")
	f.String("replica", "", "which address of --replicas is this scheduler's own")
	f.String("replica-listen", "", "where this scheduler listens for the others; default: the address of --replica")
	f.String("advertise", "", "host or host:port at which clients and workers reach this scheduler, for --replicas; default: where it listens")
}

// newReplicated makes one of several schedulers. Call end after Run.
func (a *app) newReplicated(config server.Config, directory *journal.Directory, token string) (srv *server.Replicated, end func(), err error) {
	end = func() {}
	addresses, err := a.replicas()
	if err != nil {
		return nil, end, err
	}
	if config.Listener, err = net.Listen("tcp", config.Address); err != nil {
		return nil, end, fmt.Errorf("listen on %s: %w: choose another address, or stop what uses it", config.Address, err)
	}
	r, err := a.replica(directory, addresses, token, config.Listener.Addr().String())
	if err != nil {
		return nil, end, errors.Join(err, config.Listener.Close())
	}
	srv, err = server.NewReplicated(config, r)
	return srv, r.Close, err
}

// replica begins the replica of this scheduler, which listens at an address for clients.
func (a *app) replica(directory *journal.Directory, addresses []string, token, listens string) (*replica.Replica, error) {
	s := a.settings
	advertise, err := advertised(s.String("advertise"), listens)
	if err != nil {
		return nil, err
	}
	own := s.String("replica")
	at := s.String("replica-listen")
	if at == "" {
		at = own
	} else if err := hostport.Listen(at); err != nil {
		return nil, usageError{fmt.Errorf("--replica-listen %w", err)}
	}
	port, err := net.Listen("tcp", at)
	if err != nil {
		return nil, fmt.Errorf("listen on %s for the other schedulers: %w: choose another address with --replica-listen, or stop what uses it", at, err)
	}
	if !hostport.Loopback(port.Addr()) {
		slog.Warn("what schedulers send to each other is not encrypted, and has all that clients submit: their network must be private", "address", port.Addr())
	}
	return replica.Open(replica.Config{
		Directory: directory, Addresses: addresses, Own: own, Listener: port, Advertise: advertise, Secret: []byte(roletoken.Replica(token)), Log: slog.Default(),
	})
}

// replicas returns the value of --replicas.
func (a *app) replicas() ([]string, error) {
	s := a.settings
	addresses, own := s.Strings("replicas"), s.String("replica")
	refuse := func(format string, args ...any) ([]string, error) {
		return nil, usageError{fmt.Errorf("--replicas: "+format, args...)}
	}
	if len(addresses) == 0 {
		for _, name := range []string{"replica", "replica-listen", "advertise"} {
			if s.String(name) != "" {
				return nil, usageError{fmt.Errorf("--%s is for schedulers with --replicas: give the addresses of all of them", name)}
			}
		}
		return nil, nil
	}
	for _, address := range addresses {
		if host, port, err := hostport.Advertise(address); err != nil {
			return refuse("%w", err)
		} else if port == "" || port == "0" || host == "" {
			return refuse("%q has no port: give host:port of each scheduler", address)
		}
	}
	if sorted := slices.Sorted(slices.Values(addresses)); len(slices.Compact(sorted)) != len(addresses) {
		return refuse("an address is there twice: each scheduler has its own")
	}
	if n := len(addresses); n != 3 && n != 5 {
		return refuse("%d addresses: give 3, of which one may fail, or 5, of which two may", n)
	}
	switch {
	case own == "":
		return nil, usageError{errors.New("--replica: say which address of --replicas is this scheduler's own")}
	case !slices.Contains(addresses, own):
		return nil, usageError{fmt.Errorf("--replica %s: it is none of --replicas %s", own, strings.Join(addresses, ","))}
	case s.String("journal") == "":
		return refuse("each scheduler keeps what is accepted in a directory of its own: name it with --journal")
	}
	token, err := a.token()
	if err == nil && token == "" {
		return refuse("all schedulers have the same token: give it with MILLRACE_TOKEN, --token or --token-file")
	}
	return addresses, err
}

// advertised returns the address of the scheduler for clients.
func advertised(text, listens string) (string, error) {
	_, port, err := net.SplitHostPort(listens)
	if err != nil {
		return "", err
	}
	if text == "" {
		return pastable(listens), nil
	}
	host, own, err := hostport.Advertise(text)
	if err != nil {
		return "", usageError{fmt.Errorf("--advertise %w", err)}
	}
	if own == "" {
		own = port
	}
	return net.JoinHostPort(host, own), nil
}

// demandAlone refuses the directory of a replica for a scheduler that is alone.
func demandAlone(directory *journal.Directory) error {
	if _, err := directory.Size(replica.IdentityFile); err == nil {
		return usageError{fmt.Errorf("--journal %s: it belongs to one of several schedulers: give --replicas and --replica, too, or choose another directory", directory.Path())}
	}
	return nil
}
