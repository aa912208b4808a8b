package rpc

import (
	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/server/schedapi"
)

func gpuTo(g schedapi.GPU) *pb.Gpu {
	if g.UUID == "" {
		return nil
	}
	out := &pb.Gpu{Uuid: g.UUID, Name: g.Name, PciBusId: g.PCIBusID, MemoryBytes: g.MemoryBytes, Placement: g.Placement, NetDevices: g.NetDevices}
	if g.Node >= 0 {
		out.NumaNode = &g.Node
	}
	for _, l := range g.Links {
		out.Links = append(out.Links, &pb.GpuLink{Uuid: l.UUID, NvLinks: l.NVLinks, PeerAccess: l.PeerAccess, Reason: l.Why})
	}
	return out
}

func gpuFrom(g *pb.Gpu) schedapi.GPU {
	out := schedapi.GPU{
		UUID: g.GetUuid(), Name: g.GetName(), PCIBusID: g.GetPciBusId(), MemoryBytes: g.GetMemoryBytes(),
		Node: -1, Placement: g.GetPlacement(), NetDevices: g.GetNetDevices(),
	}
	if g != nil && g.NumaNode != nil {
		out.Node = g.GetNumaNode()
	}
	for _, l := range g.GetLinks() {
		out.Links = append(out.Links, schedapi.GPULink{UUID: l.GetUuid(), NVLinks: l.GetNvLinks(), PeerAccess: l.GetPeerAccess(), Why: l.GetReason()})
	}
	return out
}

func gpuHealthTo(h *schedapi.GPUHealth) *pb.GpuHealth {
	if h == nil {
		return nil
	}
	return &pb.GpuHealth{
		UsedBytes: h.UsedBytes, UtilizationPercent: h.UtilizationPercent, MemoryPercent: h.MemoryPercent, ClockMhz: h.ClockMHz,
		ThrottleReasons: h.Throttled, Watts: h.Watts, Celsius: h.Celsius, CorrectedEccErrors: h.CorrectedECC, UncorrectedEccErrors: h.UncorrectedECC,
		Xids: h.XIDs, LastEvent: h.LastEvent, ForeignProcesses: h.ForeignProcesses, ForeignBytes: h.ForeignBytes,
		NvLinkReceivedBytes: h.NVLinkReceivedBytes, NvLinkSentBytes: h.NVLinkSentBytes,
		PcieReceivedBytesPerSecond: h.PCIeReceivedRate, PcieSentBytesPerSecond: h.PCIeSentRate,
	}
}

func gpuHealthFrom(h *pb.GpuHealth) *schedapi.GPUHealth {
	if h == nil {
		return nil
	}
	return &schedapi.GPUHealth{
		UsedBytes: h.GetUsedBytes(), UtilizationPercent: h.GetUtilizationPercent(), MemoryPercent: h.GetMemoryPercent(), ClockMHz: h.GetClockMhz(),
		Throttled: h.GetThrottleReasons(), Watts: h.GetWatts(), Celsius: h.GetCelsius(), CorrectedECC: h.GetCorrectedEccErrors(), UncorrectedECC: h.GetUncorrectedEccErrors(),
		XIDs: h.GetXids(), LastEvent: h.GetLastEvent(), ForeignProcesses: h.GetForeignProcesses(), ForeignBytes: h.GetForeignBytes(),
		NVLinkReceivedBytes: copyOf(h.NvLinkReceivedBytes), NVLinkSentBytes: copyOf(h.NvLinkSentBytes),
		PCIeReceivedRate: copyOf(h.PcieReceivedBytesPerSecond), PCIeSentRate: copyOf(h.PcieSentBytesPerSecond),
	}
}

// copyOf copies an optional field, because the memory of a message is used again.
func copyOf[T any](p *T) *T {
	if p == nil {
		return nil
	}
	return new(*p)
}
