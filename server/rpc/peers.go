package rpc

import (
	"context"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/hostport"
	"github.com/millrace/millrace/server/schedapi"
)

func (s *schedulerService) ListPeers(ctx context.Context, _ *pb.ListPeersRequest) (*pb.ListPeersResponse, error) {
	out := new(pb.ListPeersResponse)
	if s.config.Peers != nil {
		out.Peers = convertAll(s.config.Peers.Peers(ctx), peerTo)
	}
	return out, nil
}

func (s *schedulerService) AddPeer(ctx context.Context, r *pb.AddPeerRequest) (*pb.AddPeerResponse, error) {
	peers, err := s.several()
	if err == nil {
		err = peerAddress(r.GetAddress())
	}
	if err == nil {
		err = peers.AddPeer(ctx, r.GetAddress())
	}
	return new(pb.AddPeerResponse), err
}

func (s *schedulerService) RemovePeer(ctx context.Context, r *pb.RemovePeerRequest) (*pb.RemovePeerResponse, error) {
	peers, err := s.several()
	if err == nil {
		err = peers.RemovePeer(ctx, r.GetAddress())
	}
	return new(pb.RemovePeerResponse), err
}

// several returns the schedulers with one journal.
func (s *schedulerService) several() (schedapi.Peers, error) {
	if s.config.Peers == nil {
		return nil, invalid("address", "this scheduler is alone: \"millrace peers bootstrap\" makes it the first of several")
	}
	return s.config.Peers, nil
}

// peerAddress refuses an address that others cannot reach.
func peerAddress(text string) error {
	host, port, err := hostport.Advertise(text)
	if err != nil {
		return invalid("address", err.Error())
	}
	if host == "" || port == "" || port == "0" {
		return invalid("address", "it has no port: give host:port")
	}
	return nil
}

func peerTo(p schedapi.Peer) *pb.Peer {
	return &pb.Peer{
		Address: p.Address, ClientAddress: p.Client, Role: pb.PeerRole(p.Role), Votes: p.Votes, Term: p.Term, Index: p.Index, Behind: p.Behind,
		Silence: durationpb.New(p.Silence), Version: p.Version, Trouble: p.Trouble,
	}
}
