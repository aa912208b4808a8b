package topology

import (
	"fmt"
	"strconv"
	"strings"
)

type picked struct {
	gpu      GPU
	instance *Instance
}

// pickVisible applies CUDA_VISIBLE_DEVICES as the CUDA driver does. An entry is an index, a UUID or
// the beginning of one, or a MIG instance. The first entry that matches no device ends the list. An
// index is in nvidia-smi's order.
//
// An entry without a match is also returned as an error, together with the devices before it. CUDA
// ignores it silently, but then a cluster would have fewer GPUs than requested.
func pickVisible(gpus []GPU, visible *string, order string, note func(string, ...any)) (list []picked, wrong error) {
	if visible == nil {
		for _, g := range gpus {
			list = append(list, wholeOrParts(g, note)...)
		}
		return list, nil
	}
	text := strings.TrimSpace(*visible)
	if text == "" || text == "-1" || strings.EqualFold(text, "none") || strings.EqualFold(text, "NoDevFiles") {
		note("CUDA_VISIBLE_DEVICES=%q hides all %d GPUs", *visible, len(gpus))
		return nil, nil
	}
	byIndex := false
	seen := map[string]bool{}
	for entry := range strings.SplitSeq(text, ",") {
		entry = strings.TrimSpace(entry)
		if _, err := strconv.Atoi(entry); err == nil {
			byIndex = true
		}
		found, err := match(gpus, entry, note)
		if err != nil {
			wrong = fmt.Errorf("CUDA_VISIBLE_DEVICES=%q: %w; there are: %s; correct or unset it", *visible, err, listed(gpus))
			note("%v; it and what follows is ignored, as CUDA does", wrong)
			break
		}
		for _, p := range found {
			uuid := p.gpu.UUID
			if p.instance != nil {
				uuid = p.instance.UUID
			}
			if seen[uuid] {
				note("CUDA_VISIBLE_DEVICES=%q names %s twice; it is used once", *visible, uuid)
				continue
			}
			seen[uuid] = true
			list = append(list, p)
		}
	}
	if byIndex && order != "PCI_BUS_ID" && differ(gpus) {
		note("CUDA_VISIBLE_DEVICES=%q has indices, and the GPUs are of several kinds: they are taken in nvidia-smi's order, whereas CUDA counts the fastest first; set CUDA_DEVICE_ORDER=PCI_BUS_ID or use UUIDs", *visible)
	}
	return list, wrong
}

// listed returns the devices that CUDA_VISIBLE_DEVICES could name.
func listed(gpus []GPU) string {
	if len(gpus) == 0 {
		return "none"
	}
	var names []string
	for _, g := range gpus {
		names = append(names, fmt.Sprintf("%d (%s, %s)", g.Index, g.UUID, g.Name))
		for _, i := range g.Instances {
			names = append(names, fmt.Sprintf("%s (%s)", i.UUID, i.Name))
		}
	}
	return strings.Join(names, ", ")
}

func differ(gpus []GPU) bool {
	for _, g := range gpus {
		if g.Name != gpus[0].Name {
			return true
		}
	}
	return false
}

// wholeOrParts returns the card or, if it has MIG enabled, its instances.
func wholeOrParts(g GPU, note func(string, ...any)) (list []picked) {
	if !g.MIGEnabled {
		return []picked{{gpu: g}}
	}
	if len(g.Instances) == 0 {
		note("%s (%s) has MIG enabled and no instance: it cannot be used; create one (nvidia-smi mig -cgi … -C) or switch MIG off", g.UUID, g.Name)
	}
	for i := range g.Instances {
		list = append(list, picked{gpu: g, instance: &g.Instances[i]})
	}
	return list
}

func match(gpus []GPU, entry string, note func(string, ...any)) ([]picked, error) {
	if n, err := strconv.Atoi(entry); err == nil {
		for _, g := range gpus {
			if g.Index == n {
				return wholeOrParts(g, note), nil
			}
		}
		return nil, fmt.Errorf("there is no GPU %d among %d", n, len(gpus))
	}
	if rest, ok := strings.CutPrefix(entry, "MIG-GPU-"); ok {
		return matchParts(gpus, rest)
	}
	var found []picked
	for _, g := range gpus {
		if len(entry) > len("GPU-") && hasPrefixFold(g.UUID, entry) {
			found = append(found, wholeOrParts(g, note)...)
		}
		for i := range g.Instances {
			if len(entry) > len("MIG-") && hasPrefixFold(g.Instances[i].UUID, entry) {
				found = append(found, picked{gpu: g, instance: &g.Instances[i]})
			}
		}
	}
	switch {
	case len(found) == 0:
		return nil, fmt.Errorf("%q names no GPU of this machine", entry)
	case len(found) > 1 && found[0].gpu.UUID != found[len(found)-1].gpu.UUID:
		return nil, fmt.Errorf("%q is the beginning of several UUIDs", entry)
	default:
		return found, nil
	}
}

// matchParts finds a MIG instance by the older notation: the GPU's UUID, then /1/0.
func matchParts(gpus []GPU, rest string) ([]picked, error) {
	uuid, numbers, _ := strings.Cut(rest, "/")
	for _, g := range gpus {
		if !strings.EqualFold(g.UUID, "GPU-"+uuid) {
			continue
		}
		for i, in := range g.Instances {
			if numbers == fmt.Sprintf("%d/%d", in.GPUInstance, in.ComputeInstance) {
				return []picked{{gpu: g, instance: &g.Instances[i]}}, nil
			}
		}
	}
	return nil, fmt.Errorf("%q names no MIG instance of this machine", "MIG-GPU-"+rest)
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}
