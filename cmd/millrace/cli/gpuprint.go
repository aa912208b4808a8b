package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// gpuColumns are the columns of a worker's GPU in wide lists.
var gpuColumns = []string{"GPU", "MODEL", "GPU MEMORY", "BUSY", "GPU HEALTH"}

// gpuCells returns the cells of one worker's GPU; dashes for a worker without a GPU.
func gpuCells(w *millracev1.Worker) []any {
	g, h := w.GetGpu(), w.GetGpuHealth()
	if g == nil {
		return []any{"-", "-", "-", "-", "-"}
	}
	memory, busy := size(g.GetMemoryBytes()), "-"
	if h != nil {
		memory = size(h.GetUsedBytes()) + " of " + memory
		busy = fmt.Sprintf("%d %%", h.GetUtilizationPercent())
	}
	return []any{g.GetUuid(), g.GetName(), memory, busy, gpuHealth(h)}
}

// gpuHealth describes the problems of a GPU in one line.
func gpuHealth(h *millracev1.GpuHealth) string {
	if h == nil {
		return "not known"
	}
	var wrong []string
	if h.GetXids() > 0 {
		wrong = append(wrong, fmt.Sprintf("%d Xid errors", h.GetXids()))
	}
	if h.GetLastEvent() != "" {
		wrong = append(wrong, "last event: "+h.GetLastEvent())
	}
	if h.GetUncorrectedEccErrors() > 0 {
		wrong = append(wrong, fmt.Sprintf("%d memory errors that ECC could not correct", h.GetUncorrectedEccErrors()))
	}
	if t := h.GetThrottleReasons(); len(t) > 0 {
		wrong = append(wrong, "slowed by: "+strings.Join(t, ", "))
	}
	if h.GetForeignProcesses() > 0 {
		wrong = append(wrong, fmt.Sprintf("%d other processes use %s", h.GetForeignProcesses(), size(h.GetForeignBytes())))
	}
	if len(wrong) == 0 {
		return "ok"
	}
	return strings.Join(wrong, "; ")
}

// linkRows describes what the links of a worker's GPU and its network devices carry. Figures
// that are not known are left out.
func linkRows(w io.Writer, x *millracev1.Worker) {
	h := x.GetGpuHealth()
	if h != nil && h.NvLinkReceivedBytes != nil && h.NvLinkSentBytes != nil {
		row(w, "nvlink", soFar(h.GetNvLinkReceivedBytes(), h.GetNvLinkSentBytes()))
	}
	if h != nil && h.PcieReceivedBytesPerSecond != nil && h.PcieSentBytesPerSecond != nil {
		row(w, "pcie", rates(h.GetPcieReceivedBytesPerSecond(), h.GetPcieSentBytesPerSecond()))
	}
	for _, d := range x.GetNetworkDevices() {
		var parts []string
		if d.ReceivedBytesPerSecond != nil && d.SentBytesPerSecond != nil {
			parts = append(parts, rates(d.GetReceivedBytesPerSecond(), d.GetSentBytesPerSecond()))
		}
		if d.ReceivedBytes != nil && d.SentBytes != nil {
			parts = append(parts, soFar(d.GetReceivedBytes(), d.GetSentBytes()))
		}
		row(w, "network "+d.GetName(), cmp.Or(strings.Join(parts, "; "), "not counted"))
	}
}

// rates describes rates in bytes per second.
func rates(received, sent float64) string {
	return fmt.Sprintf("%s/s received, %s/s sent", humanize.Bytes(uint64(received)), humanize.Bytes(uint64(sent)))
}

// soFar describes sums of bytes.
func soFar(received, sent uint64) string {
	return fmt.Sprintf("%s received, %s sent so far", size(received), size(sent))
}

// gpusOf returns the active workers with GPUs, by host and name.
func gpusOf(workers []*millracev1.Worker) []*millracev1.Worker {
	on := slices.DeleteFunc(slices.Clone(workers), func(w *millracev1.Worker) bool {
		return w.GetGpu() == nil || w.GetState() != millracev1.WorkerState_WORKER_STATE_ACTIVE
	})
	slices.SortFunc(on, func(a, b *millracev1.Worker) int {
		return cmp.Or(cmp.Compare(a.GetHost(), b.GetHost()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return on
}

// gpuTable shows the GPUs of workers, and for each host how its GPUs reach each other: "NV18" means
// by 18 NVLinks, "P2P" by peer access without NVLinks, "no: REASON" by copies through host memory,
// and "?" that it was not reported.
func gpuTable(w io.Writer, workers []*millracev1.Worker) {
	on := gpusOf(workers)
	if len(on) == 0 {
		return
	}
	row(w, "WORKER", "HOST", "GPU", "MODEL", "MEMORY", "PCI", "NODE", "NIC", "PROCESSORS")
	for _, x := range on {
		g := x.GetGpu()
		node := "-"
		if g.NumaNode != nil {
			node = fmt.Sprint(g.GetNumaNode())
		}
		row(w, x.GetName(), x.GetHost(), g.GetUuid(), g.GetName(), size(g.GetMemoryBytes()), g.GetPciBusId(), node, cmp.Or(g.GetNetDevices(), "-"), g.GetPlacement())
	}
	row(w)
	for len(on) > 0 {
		n := 1
		for n < len(on) && on[n].GetHost() == on[0].GetHost() {
			n++
		}
		linkTable(w, on[:n])
		on = on[n:]
	}
}

func linkTable(w io.Writer, on []*millracev1.Worker) {
	header := []any{"LINKS"}
	for _, x := range on {
		header = append(header, x.GetName())
	}
	row(w, header...)
	for _, a := range on {
		cells := []any{a.GetName()}
		for _, b := range on {
			cells = append(cells, linkCell(a, b))
		}
		row(w, cells...)
	}
	row(w)
}

func linkCell(a, b *millracev1.Worker) string {
	if a == b {
		return "-"
	}
	i := slices.IndexFunc(a.GetGpu().GetLinks(), func(l *millracev1.GpuLink) bool { return l.GetUuid() == b.GetGpu().GetUuid() })
	if i < 0 {
		return "?"
	}
	switch l := a.GetGpu().GetLinks()[i]; {
	case !l.GetPeerAccess():
		return "no: " + l.GetReason()
	case l.GetNvLinks() > 0:
		return fmt.Sprintf("NV%d", l.GetNvLinks())
	default:
		return "P2P"
	}
}

// topoGPU is one GPU in the JSON of topo.
type topoGPU struct {
	Worker string          `json:"worker"`
	Host   string          `json:"host"`
	GPU    *millracev1.Gpu `json:"gpu"`
}

func topoGPUs(workers []*millracev1.Worker) []topoGPU {
	list := []topoGPU{}
	for _, w := range gpusOf(workers) {
		list = append(list, topoGPU{w.GetName(), w.GetHost(), w.GetGpu()})
	}
	return list
}
