package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	millrace "github.com/millrace/millrace/clients/go"
)

// Eight chunks of 24 MiB, four of which are kept, are made on two workers whose slabs hold 32 MiB
// each. Most of them go through the disk, and the command that describes memory shows that.
func TestMemoryShowsTiersHoldersAndSpilledBytes(t *testing.T) {
	directory := t.TempDir()
	c := startCluster(t, "--workers", "2", "--memory-limit", "32MiB", "--spill-limit", "1GiB", "--local-directory", directory)
	var graph strings.Builder
	graph.WriteString("name: spill\ntasks:\n")
	for _, k := range []string{"0", "1", "2", "3", "4", "5", "6", "7"} {
		graph.WriteString("- {key: mem-" + k + ", op: array.full, args: [[3145728], " + k + ".0]}\n")
		if k > "3" { // The others are results themselves, and are kept.
			graph.WriteString("- {key: sum-" + k + ", op: array.reduce, args: [{input: mem-" + k + "}, sum]}\n")
		}
	}
	file := filepath.Join(t.TempDir(), "graph.yaml")
	if err := os.WriteFile(file, []byte(graph.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if text, errs, code := c.command(t, "", "submit", "-f", file, "--wait"); code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, text, errs)
	}
	if got := c.succeed(t, "get", "result", "sum-7", "--json")["json"]; got != 7.0*3145728 {
		t.Errorf("sum of the last chunk: %v", got)
	}
	var workers []any
	within(t, "the 4 results that are large have a holder each, and nothing else has", func() bool {
		workers, _ = c.succeed(t, "memory", "--json")["workers"].([]any)
		holders := 0
		for _, w := range workers {
			largest, _ := dig(w.(map[string]any), "memory", "largest").([]any)
			holders += len(largest)
		}
		return holders == 4
	})
	if len(workers) != 2 {
		t.Fatalf("memory: %v", workers)
	}
	onDisk := false
	for _, w := range workers {
		tiers, _ := dig(w.(map[string]any), "memory", "tiers").([]any)
		if len(tiers) != 2 {
			t.Fatalf("tiers: %v", tiers)
		}
		slab, disk := tiers[0].(map[string]any), tiers[1].(map[string]any)
		if slab["name"] != "slab" || slab["sizeBytes"] != "33554432" || disk["name"] != "disk" || disk["sizeBytes"] != "1073741824" {
			t.Errorf("tiers: %v", tiers)
		}
		onDisk = onDisk || disk["writtenBytes"] != "0"
	}
	if !onDisk {
		t.Errorf("nothing was spilled: %v", workers)
	}
	if text, _, code := c.command(t, "", "get", "workers", "-o", "wide"); code != 0 || !strings.Contains(text, "SPILLED") {
		t.Errorf("exit code %d\n%s", code, text)
	}
	if text, _, code := c.command(t, "", "memory"); code != 0 || !strings.Contains(text, "TIER") || !strings.Contains(text, "LARGEST") {
		t.Errorf("exit code %d\n%s", code, text)
	}
	task, _ := dig(c.succeed(t, "describe", "task", "mem-0", "--json"), "task", "taskId").(string)
	if text, errs, code := c.command(t, "", "memory", "--task", "t"+task); code != 0 || !strings.Contains(text, "sealed") || !strings.Contains(text, " to make") {
		t.Errorf("the history of t%s: exit code %d\n%s%s", task, code, text, errs)
	}
	if _, errs, code := c.command(t, "", "memory", "nobody"); code == 0 || !strings.Contains(errs, "nobody") {
		t.Errorf("exit code %d\n%s", code, errs)
	}
}

// A task without memory for its result waits, and explain names the memory, the worker, and the
// holders of the memory.
func TestExplainTellsWhatMemoryATaskWaitsFor(t *testing.T) {
	c := startCluster(t, "--workers", "1", "--memory-limit", "32MiB", "--spill-limit", "none")
	client := c.dial(t)
	ctx := soon(t)
	array := func(key string, mib int) *millrace.Future {
		f, err := client.Submit(ctx, millrace.Native("array.full"), millrace.Args([]int{mib << 17}, 1.0), millrace.WithKey(key))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	kept := array("kept", 20)
	if err := kept.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	late := array("late", 16)
	if err := client.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	within(t, "explain tells all of it", func() bool {
		text, _, _ := c.command(t, "", "explain", "late", "--namespace", namespace(t))
		for _, want := range []string{"for memory: 16 MiB for its result, behind 0 others", "slab: 20", "of 32 MiB in use", "most is held by the result of t", "(20 MiB)"} {
			if !strings.Contains(text, want) {
				return false
			}
		}
		return true
	})
	kept.Release()
	if err := late.Wait(ctx); err != nil {
		t.Error(err)
	}
}
