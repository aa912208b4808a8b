package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/edge"
	"github.com/millrace/millrace/server/plugins"
	"github.com/millrace/millrace/server/schedapi"
)

// orderBytes is the approximate size at which a list of plugins is split into messages.
const orderBytes = 8 << 20

// pluginService serves PluginService and PluginOrderService. The scheduler owns the machine of the
// plugins.
type pluginService struct {
	pb.UnimplementedPluginServiceServer
	workerv1.UnimplementedPluginOrderServiceServer
	*Server

	mu   sync.Mutex
	last uint64 // the last number of a connection or a call
	// orders have the last list for each connection, with room for one. answers have room for the
	// one answer to each call. Both are guarded by mu, as is all above.
	orders  map[plugins.Follower]chan plugins.Effect
	answers map[plugins.Ticket]chan plugins.Effect
}

func newPluginService(s *Server) *pluginService {
	return &pluginService{
		Server: s, orders: make(map[plugins.Follower]chan plugins.Effect), answers: make(map[plugins.Ticket]chan plugins.Effect),
	}
}

// step gives the machine to change, and carries out the effects.
func (s *pluginService) step(ctx context.Context, change func(*plugins.Machine) []plugins.Effect) error {
	return s.scheduler.Plugins(ctx, false, func(m *plugins.Machine) []plugins.Effect {
		effects := change(m)
		s.carryOut(effects)
		return effects
	})
}

// number returns the next number of a connection or a call.
func (s *pluginService) number() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	return s.last
}

// carryOut carries out effects.
func (s *pluginService) carryOut(effects []plugins.Effect) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range effects {
		switch e.Kind {
		case plugins.EffectChanged: // The scheduler records it.
		case plugins.EffectOrder:
			to := s.orders[e.Follower]
			select {
			case <-to: // a list that was not taken yet is replaced
			default:
			}
			to <- e
		case plugins.EffectAnswer:
			if answer := s.answers[e.Ticket]; answer != nil { // nil: it was given up
				answer <- e
				delete(s.answers, e.Ticket)
			}
		}
	}
}

// call makes a change that workers carry out, and waits for its end.
func (s *pluginService) call(ctx context.Context, registers bool, change func(*plugins.Machine, plugins.Ticket) ([]plugins.Effect, error)) (plugins.Effect, error) {
	answer, ticket := make(chan plugins.Effect, 1), plugins.Ticket(s.number())
	var effects []plugins.Effect
	var refused error
	err := s.scheduler.Plugins(ctx, registers, func(m *plugins.Machine) []plugins.Effect {
		if effects, refused = change(m, ticket); refused != nil || effects == nil {
			return nil
		}
		s.mu.Lock()
		s.answers[ticket] = answer
		s.mu.Unlock()
		s.carryOut(effects)
		return effects
	})
	if err = cmp.Or(err, refused); err != nil || effects == nil {
		return plugins.Effect{Kept: true}, err
	}
	defer s.giveUp(context.WithoutCancel(ctx), ticket)
	select {
	case e := <-answer:
		return e, nil
	case <-s.scheduler.Draining():
		return plugins.Effect{}, &schedapi.Error{Kind: schedapi.ErrDraining, Message: "the scheduler is stopping: repeat the call when it is back"}
	case <-ctx.Done():
		return plugins.Effect{}, ctx.Err()
	}
}

// giveUp tells that nobody waits for the answer to a call any more, unless it was given.
func (s *pluginService) giveUp(ctx context.Context, ticket plugins.Ticket) {
	s.mu.Lock()
	waits := s.answers[ticket] != nil
	delete(s.answers, ticket)
	s.mu.Unlock()
	if waits {
		_ = s.step(ctx, func(m *plugins.Machine) []plugins.Effect { // It fails only if the scheduler has stopped.
			m.GiveUp(ticket)
			return nil
		})
	}
}

// RegisterPlugin is part of PluginServiceServer.
func (s *pluginService) RegisterPlugin(ctx context.Context, r *pb.RegisterPluginRequest) (*pb.RegisterPluginResponse, error) {
	plugin := r.GetPlugin()
	plugin.Version = 0
	if plugin.GetSetup() == nil && plugin.GetTeardown() == nil {
		return nil, invalid("plugin.setup", "it is absent, and so is teardown: a plugin calls at least one function")
	}
	for _, part := range []struct {
		field string
		call  *pb.FunctionCall
	}{{"plugin.setup.name", plugin.GetSetup()}, {"plugin.teardown.name", plugin.GetTeardown()}} {
		if c := part.call; c != nil && c.GetFunction() == nil && !strings.ContainsAny(c.GetName(), ":/") {
			return nil, invalid(part.field, fmt.Sprintf("%q is neither the import path of a Python function (package.module:function) nor a function of a registered program (name/function)", c.GetName()))
		}
	}
	body, err := proto.Marshal(plugin)
	if err != nil {
		return nil, err
	}
	end, err := s.call(ctx, true, func(m *plugins.Machine, ticket plugins.Ticket) ([]plugins.Effect, error) {
		name := plugin.GetName()
		_, known := m.Find(name)
		switch {
		case known && r.GetIdempotent():
			return nil, nil
		case m.Full(name):
			return nil, edge.Refusal(codes.ResourceExhausted, "PLUGIN_TOO_LARGE", fmt.Sprintf(
				"plugin %q would be one more than the %d that there may be; unregister some (ListPlugins), or give several the same name, which replaces them",
				name, plugins.MaxPlugins), map[string]string{"object": name})
		}
		if all := m.Bytes(name) + len(body); len(body) > plugins.MaxPluginBytes || all > plugins.MaxTotalBytes {
			return nil, edge.Refusal(codes.ResourceExhausted, "PLUGIN_TOO_LARGE", fmt.Sprintf(
				"plugin %q has %d bytes, and all plugins would have %d: one may have %d, and all together %d; let it read what is large from a shared directory",
				name, len(body), all, plugins.MaxPluginBytes, plugins.MaxTotalBytes), map[string]string{"object": name})
		}
		return m.Register(ticket, name, body), nil
	})
	if err == nil && end.Kept {
		err = s.scheduler.Recorded(ctx)
	}
	if err != nil {
		return nil, err
	}
	return &pb.RegisterPluginResponse{Registered: end.Kept, Workers: outcomesTo(end.Outcomes)}, nil
}

// UnregisterPlugin is part of PluginServiceServer.
func (s *pluginService) UnregisterPlugin(ctx context.Context, r *pb.UnregisterPluginRequest) (*pb.UnregisterPluginResponse, error) {
	end, err := s.call(ctx, false, func(m *plugins.Machine, ticket plugins.Ticket) ([]plugins.Effect, error) {
		if _, known := m.Find(r.GetName()); !known {
			return nil, edge.Refusal(codes.NotFound, "UNKNOWN_PLUGIN", fmt.Sprintf("there is no plugin %q: see ListPlugins", r.GetName()), map[string]string{"object": r.GetName()})
		}
		return m.Unregister(ticket, r.GetName()), nil
	})
	if err != nil {
		return nil, err
	}
	// A disk that fails does not matter: the plugin is gone from all workers.
	if s.scheduler.Recorded(ctx) != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return &pb.UnregisterPluginResponse{Workers: outcomesTo(end.Outcomes)}, nil
}

func outcomesTo(outcomes []plugins.Outcome) (list []*pb.PluginOutcome) {
	for _, o := range outcomes {
		outcome := &pb.PluginOutcome{Worker: o.Worker}
		outcome.Failures, _ = o.Failures.([]*pb.FunctionResult) // nil: none has failed
		list = append(list, outcome)
	}
	return list
}

// ListPlugins is part of PluginServiceServer.
func (s *pluginService) ListPlugins(ctx context.Context, _ *pb.ListPluginsRequest) (*pb.ListPluginsResponse, error) {
	var list []plugins.Plugin
	if err := s.step(ctx, func(m *plugins.Machine) []plugins.Effect { list = m.Plugins(); return nil }); err != nil {
		return nil, err
	}
	response := &pb.ListPluginsResponse{}
	for _, p := range list {
		plugin, err := pluginTo(p)
		if err != nil {
			return nil, err
		}
		for _, c := range []*pb.FunctionCall{plugin.GetSetup(), plugin.GetTeardown()} {
			if c != nil {
				c.Function, c.Arguments = nil, nil
			}
		}
		response.Plugins = append(response.Plugins, plugin)
	}
	return response, nil
}

func pluginTo(p plugins.Plugin) (*pb.Plugin, error) {
	plugin := &pb.Plugin{}
	if err := proto.Unmarshal(p.Body, plugin); err != nil {
		return nil, fmt.Errorf("plugin %q: %w", p.Name, err)
	}
	plugin.Version = p.Version
	return plugin, nil
}

// FollowPlugins is part of PluginOrderServiceServer.
func (s *pluginService) FollowPlugins(stream grpc.BidiStreamingServer[workerv1.FollowPluginsRequest, workerv1.FollowPluginsResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	orders, id := make(chan plugins.Effect, 1), plugins.Follower(s.number())
	s.mu.Lock()
	s.orders[id] = orders
	s.mu.Unlock()
	defer func() {
		// It fails only if the scheduler has stopped.
		_ = s.step(context.WithoutCancel(stream.Context()), func(m *plugins.Machine) []plugins.Effect { return m.Leave(id) })
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.orders, id)
	}()
	if err := s.step(stream.Context(), func(m *plugins.Machine) []plugins.Effect { return m.Join(id, first.GetWorker()) }); err != nil {
		return err
	}
	ended := make(chan error, 1)
	s.streams.Go(func() { ended <- s.readReports(stream, id) })
	sent := make(map[uint64]bool)
	for {
		select {
		case e := <-orders:
			if err := sendOrder(stream, e, sent); err != nil {
				return err
			}
		case err := <-ended:
			return err
		case <-s.scheduler.Draining():
			return nil
		}
	}
}

// readReports returns when the worker ends the stream or the connection breaks.
func (s *pluginService) readReports(stream grpc.BidiStreamingServer[workerv1.FollowPluginsRequest, workerv1.FollowPluginsResponse], id plugins.Follower) error {
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var failures []plugins.Failure
		for _, f := range r.GetFailures() {
			failures = append(failures, plugins.Failure{Version: f.GetVersion(), Failures: f.GetOutcome().GetFailures()})
		}
		err = s.step(stream.Context(), func(m *plugins.Machine) []plugins.Effect { return m.Report(id, r.GetRevision(), failures) })
		if err != nil {
			return err
		}
	}
}

// sendOrder sends a list. sent are the versions that the worker has; those of the list are added.
func sendOrder(stream grpc.ServerStreamingServer[workerv1.FollowPluginsResponse], e plugins.Effect, sent map[uint64]bool) error {
	message, bytes := &workerv1.FollowPluginsResponse{Revision: e.Revision}, 0
	for _, p := range e.Plugins {
		plugin := &pb.Plugin{Name: p.Name, Version: p.Version}
		if !sent[p.Version] {
			var err error
			if plugin, err = pluginTo(p); err != nil {
				return err
			}
			sent[p.Version] = true
			bytes += len(p.Body)
		}
		message.Plugins = append(message.Plugins, plugin)
		if bytes > orderBytes {
			message.More = true
			if err := stream.Send(message); err != nil {
				return err
			}
			message, bytes = &workerv1.FollowPluginsResponse{Revision: e.Revision}, 0
		}
	}
	return stream.Send(message)
}
