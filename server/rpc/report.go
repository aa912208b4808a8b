package rpc

import (
	"context"

	"google.golang.org/grpc/metadata"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
)

// GetReport is part of SchedulerServiceServer. The report asks workers with the caller's token.
func (s *schedulerService) GetReport(ctx context.Context, r *pb.GetReportRequest) (*pb.GetReportResponse, error) {
	if s.config.Report == nil {
		return s.UnimplementedSchedulerServiceServer.GetReport(ctx, r)
	}
	for _, shown := range metadata.ValueFromIncomingContext(ctx, "authorization") {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", shown)
	}
	html, err := s.config.Report(ctx, r)
	if err != nil {
		return nil, err
	}
	return &pb.GetReportResponse{Html: html}, nil
}
