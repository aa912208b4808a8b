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
	"github.com/millrace/millrace/internal/version"
	"github.com/millrace/millrace/server"
	"github.com/millrace/millrace/server/consensus"
	"github.com/millrace/millrace/server/journal"
)

func peerFlags(f *pflag.FlagSet) {
	f.StringSlice("peers", nil, "addresses, host:port, at which schedulers with one journal reach each other: at the first start three or five, the same list for all of them; needs --peer-advertise, --journal and --token")
	f.String("peer-advertise", "", "which address of --peers is this scheduler's own")
	f.String("peer-listen", "", "where this scheduler listens for the others; default: the address of --peer-advertise")
	f.Duration("election-timeout", consensus.DefaultHeartbeat, "for --peers: the silence of the leader after which the others elect another one, 100ms to 30s, the same for all; longer where processes may stand still for that time")
	f.String("advertise", "", "host or host:port at which clients and workers reach this scheduler, for --peers; default: where it listens")
}

// newPeer makes one of several schedulers. Call end after Run.
func (a *app) newPeer(config server.Config, directory *journal.Directory, token string) (srv *server.Peer, end func(), err error) {
	end = func() {}
	addresses, err := a.peers()
	if err != nil {
		return nil, end, err
	}
	if config.Listener, err = net.Listen("tcp", config.Address); err != nil {
		return nil, end, fmt.Errorf("listen on %s: %w: choose another address, or stop what uses it", config.Address, err)
	}
	r, err := a.peer(directory, addresses, token, config.Listener.Addr().String())
	if err != nil {
		return nil, end, errors.Join(err, config.Listener.Close())
	}
	srv, err = server.NewPeer(config, r)
	return srv, r.Close, err
}

// peer begins what this scheduler shares with the others. It listens at an address for clients.
func (a *app) peer(directory *journal.Directory, addresses []string, token, listens string) (*consensus.Peer, error) {
	s := a.settings
	advertise, err := advertised(s.String("advertise"), listens)
	if err != nil {
		return nil, err
	}
	own := s.String("peer-advertise")
	at := s.String("peer-listen")
	if at == "" {
		at = own
	} else if err := hostport.Listen(at); err != nil {
		return nil, usageError{fmt.Errorf("--peer-listen %w", err)}
	}
	port, err := net.Listen("tcp", at)
	if err != nil {
		return nil, fmt.Errorf("listen on %s for the other schedulers: %w: choose another address with --peer-listen, or stop what uses it", at, err)
	}
	if !hostport.Loopback(port.Addr()) {
		slog.Warn("what schedulers send to each other is not encrypted, and has all that clients submit: their network must be private", "address", port.Addr())
	}
	return consensus.Open(consensus.Config{
		Directory: directory, Addresses: addresses, Own: own, Listener: port, Advertise: advertise, Secret: []byte(roletoken.Peer(token)), Version: version.String(), Log: slog.Default(),
		Heartbeat: s.Duration("election-timeout"),
	})
}

// peers returns the value of --peers.
func (a *app) peers() ([]string, error) {
	s := a.settings
	addresses, own := s.Strings("peers"), s.String("peer-advertise")
	refuse := func(format string, args ...any) ([]string, error) {
		return nil, usageError{fmt.Errorf("--peers: "+format, args...)}
	}
	if len(addresses) == 0 {
		for _, name := range []string{"peer-advertise", "peer-listen", "advertise"} {
			if s.String(name) != "" {
				return nil, usageError{fmt.Errorf("--%s is for schedulers with --peers: give the addresses of all of them", name)}
			}
		}
		return nil, nil
	}
	if err := distinct(addresses); err != nil {
		return refuse("%w", err)
	}
	if n := len(addresses); n < 3 {
		return refuse("%d addresses: give 3, of which one may fail, or 5, of which two may", n)
	}
	switch {
	case own == "":
		return nil, usageError{errors.New("--peer-advertise: say which address of --peers is this scheduler's own")}
	case !slices.Contains(addresses, own):
		return nil, usageError{fmt.Errorf("--peer-advertise %s: it is none of --peers %s", own, strings.Join(addresses, ","))}
	case s.String("journal") == "":
		return refuse("each scheduler keeps what is accepted in a directory of its own: name it with --journal")
	}
	token, err := a.token()
	if err == nil && token == "" {
		return refuse("all schedulers have the same token: give it with MILLRACE_TOKEN, --token or --token-file")
	}
	return addresses, err
}

// distinct refuses addresses that cannot be those of schedulers.
func distinct(addresses []string) error {
	for _, address := range addresses {
		if host, port, err := hostport.Advertise(address); err != nil {
			return err
		} else if port == "" || port == "0" || host == "" {
			return fmt.Errorf("%q has no port: give host:port of each scheduler", address)
		}
	}
	if sorted := slices.Sorted(slices.Values(addresses)); len(slices.Compact(sorted)) != len(addresses) {
		return errors.New("an address is there twice: each scheduler has its own")
	}
	return nil
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

// demandAlone refuses the directory of a peer for a scheduler that is alone.
func demandAlone(directory *journal.Directory) error {
	if err := consensus.RefuseOlder(directory); err != nil {
		return usageError{fmt.Errorf("--journal: %w", err)}
	}
	if _, err := directory.Size(consensus.IdentityFile); err == nil {
		return usageError{fmt.Errorf("--journal %s: it belongs to one of several schedulers: give --peers and --peer-advertise, too, or choose another directory", directory.Path())}
	}
	return nil
}
