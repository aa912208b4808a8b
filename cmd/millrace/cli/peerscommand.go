package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/pause"
	"github.com/millrace/millrace/server/consensus"
	"github.com/millrace/millrace/server/journal"
)

func (a *app) peersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "peers", Short: "List, add and remove the schedulers that share one journal",
		Long: `Several schedulers share one journal, and one of them leads ("millrace scheduler --peers"). "list" asks them for their state,
also while nobody leads; "add" lets another one join, and "remove" removes one for good. "bootstrap" makes the journal of a
scheduler alone that of the first of several.`,
	}
	cmd.AddCommand(a.peersList(), a.peersAdd(), a.peersRemove(), a.peersBootstrap())
	return cmd
}

func (a *app) peersList() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List the schedulers: roles, elections, and how far they are", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.call(cmd, func(ctx context.Context, _ *millrace.Client, s millracev1.SchedulerServiceClient) error {
				out, err := s.ListPeers(ctx, &millracev1.ListPeersRequest{})
				if err != nil {
					return err
				}
				return a.print(out, func(w io.Writer, _ bool) {
					if len(out.GetPeers()) == 0 {
						_, _ = fmt.Fprintln(w, "the scheduler is alone")
						return
					}
					_, _ = fmt.Fprintln(w, "ADDRESS\tCLIENTS\tROLE\tVOTES\tTERM\tINDEX\tBEHIND\tLAST CONTACT\tVERSION\tTROUBLE")
					for _, p := range out.GetPeers() {
						_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%t\t%d\t%d\t%d\t%s\t%s\t%s\n", plain(p.GetAddress()), cmp.Or(plain(p.GetClientAddress()), "-"), roleOf(p), p.GetVotes(),
							p.GetTerm(), p.GetIndex(), p.GetBehind(), contact(p), cmp.Or(plain(p.GetVersion()), "-"), plain(p.GetTrouble()))
					}
				})
			})
		},
	}
	addCall(cmd)
	addOutput(cmd)
	return cmd
}

func roleOf(p *millracev1.Peer) string {
	return strings.TrimPrefix(p.GetRole().String(), "PEER_ROLE_")
}

// contact is the time since a follower has heard of the leader.
func contact(p *millracev1.Peer) string {
	if p.GetRole() != millracev1.PeerRole_PEER_ROLE_FOLLOWER {
		return "-"
	}
	return p.GetSilence().AsDuration().Round(time.Millisecond).String()
}

// printPeers prints a row for each of several schedulers.
func printPeers(w io.Writer, list []*millracev1.Peer) {
	name := "peers"
	for _, p := range list {
		text := fmt.Sprintf("%s %s", plain(p.GetAddress()), roleOf(p))
		switch p.GetRole() {
		case millracev1.PeerRole_PEER_ROLE_LEADER:
			text += fmt.Sprintf(", term %d", p.GetTerm())
		case millracev1.PeerRole_PEER_ROLE_FOLLOWER, millracev1.PeerRole_PEER_ROLE_JOINING:
			text += fmt.Sprintf(", %d behind, last contact %s", p.GetBehind(), p.GetSilence().AsDuration().Round(time.Millisecond))
		case millracev1.PeerRole_PEER_ROLE_AWAY:
			text += ": " + plain(p.GetTrouble())
		case millracev1.PeerRole_PEER_ROLE_UNSPECIFIED:
		}
		row(w, name, text)
		name = ""
	}
}

func (a *app) peersAdd() *cobra.Command {
	return a.changePeers("add ADDRESS", "Let another scheduler join",
		`Lets another scheduler join. ADDRESS is where the others reach it, its --peer-advertise. Then start it with an empty directory, the
same token, and --peers with the others and itself. It gets all that the others have, and votes when it has it.`,
		func(ctx context.Context, s millracev1.SchedulerServiceClient, address string) error {
			_, err := s.AddPeer(ctx, &millracev1.AddPeerRequest{Address: address})
			return err
		})
}

func (a *app) peersRemove() *cobra.Command {
	return a.changePeers("remove ADDRESS", "Remove a scheduler for good",
		`Removes a scheduler for good, whether it runs or not. If it leads, another one does first. Its process ends by itself if it can
reach the others. It is refused if too few of those that are left would answer. To replace a machine that is lost, remove it, add
the new one, and start that.`,
		func(ctx context.Context, s millracev1.SchedulerServiceClient, address string) error {
			_, err := s.RemovePeer(ctx, &millracev1.RemovePeerRequest{Address: address})
			return err
		})
}

// changePeers is a command that changes the list of schedulers. Its call may be made again, and is
// when the leader changes meanwhile.
func (a *app) changePeers(use, short, long string, change func(context.Context, millracev1.SchedulerServiceClient, string) error) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd, func(ctx context.Context, _ *millrace.Client, s millracev1.SchedulerServiceClient) error {
				for {
					err := change(ctx, s, args[0])
					if status.Code(err) != codes.Unavailable || pause.For(ctx, time.Second) != nil {
						return err
					}
				}
			})
		},
	}
	addCall(cmd)
	return cmd
}

func (a *app) peersBootstrap() *cobra.Command {
	cmd := &cobra.Command{
		Use: "bootstrap DIR", Short: "Make the journal of a scheduler alone that of the first of several",
		Long: `Makes the directory of "millrace scheduler --journal" that of the first of several schedulers. Stop the scheduler before. Then
start it with --peers and --peer-advertise as given here, and the token that it had, and the others with empty directories. It
serves at once; the others have a vote as soon as they have all that it has. The files of before are kept in DIR/alone.`,
		Args: exactly(1), ValidArgsFunction: oneDirectory,
		RunE: func(_ *cobra.Command, args []string) error {
			addresses, own := a.settings.Strings("peers"), a.settings.String("peer-advertise")
			if err := distinct(addresses); err != nil {
				return usageError{fmt.Errorf("--peers: %w", err)}
			}
			if n := len(addresses); n != 3 && n != 5 || !slices.Contains(addresses, own) {
				return usageError{errors.New("give the addresses of three or five schedulers with --peers, and which of them this one has with --peer-advertise")}
			}
			directory, err := journal.OpenDirectory(args[0])
			if err != nil {
				return err
			}
			defer func() { _ = directory.Close() }() // The lock ends with the process in any case.
			if err := consensus.Bootstrap(directory, addresses, own, []string{tokenFile}, slog.Default()); err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.out, "%s is the directory of %s now; start it with --peers %s --peer-advertise %s, and the others with empty directories\n",
				args[0], own, strings.Join(addresses, ","), own)
			return err
		},
	}
	cmd.Flags().StringSlice("peers", nil, "addresses, host:port, at which the schedulers will reach each other")
	cmd.Flags().String("peer-advertise", "", "which address of --peers is that of the scheduler with this directory")
	return cmd
}
