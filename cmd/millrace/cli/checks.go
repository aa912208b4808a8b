package cli

import (
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dustin/go-humanize"

	"github.com/millrace/millrace/internal/hostport"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/worker"
)

// checks validate the text of a setting beyond its type, by the name of the setting. They apply to
// flags, environment and files alike, and the error names the source of the value. A name means the
// same setting in all commands.
var checks = map[string]func(text string) error{
	"device":     oneOf("auto", worker.DeviceHost, worker.DeviceCUDA),
	"protocol":   oneOf(worker.ProtocolAuto, worker.ProtocolIPC, worker.ProtocolBorrow, worker.ProtocolUCX, worker.ProtocolGRPC),
	"log-format": oneOf("auto", logText, logJSON),
	"output":     oneOf("table", "wide", "json", "yaml"),
	"log-level": func(text string) error {
		if new(slog.Level).UnmarshalText([]byte(text)) != nil {
			return fmt.Errorf("%q: debug, info, warn or error", text)
		}
		return nil
	},
	"memory-limit":           isMemoryLimit,
	"scheduler-memory":       isMemoryLimit,
	"namespace-weight":       areNamespaceLimits(setWeight),
	"namespace-tasks":        areNamespaceLimits(setTasks),
	"namespace-memory":       areNamespaceLimits(setMemory),
	"function-memory-limit":  func(text string) error { return cond(text != "none", isMemoryLimit, text) },
	"function-memory-levels": areLevels,
	"spill-limit":            isBytes(1<<20, math.MaxUint64, "auto", "none", ""),
	"pinned-limit":           isBytes(8<<20, math.MaxUint64, "auto", "none", ""),
	"executor-arena":         isBytes(0, math.MaxUint64),
	"inline-result":          isBytes(1, 1<<20),
	"device-memory-limit":    isDeviceMemory,
	"rmm-pool-size":          isDeviceMemory,
	"otlp-sample": func(text string) error {
		if share, err := strconv.ParseFloat(text, 64); err != nil || !(share >= 0 && share <= 1) {
			return fmt.Errorf("%s: a share from 0 to 1", text)
		}
		return nil
	},
	"executor-arena-for": func(text string) error {
		for _, name := range strings.Split(strings.Trim(text, "[]"), ",") {
			if !slices.Contains(arenaLibraries, name) {
				return fmt.Errorf("%s: %s", name, arenaLibrariesText)
			}
		}
		return nil
	},
	"name":             isName,
	"resources":        areAmounts,
	"exec":             areCommands,
	"workers":          isNumber(0, 4096),
	"first":            isNumber(0, 1<<20),
	"slots":            isNumber(0, 1<<16),
	"executors":        isNumber(0, 1<<16),
	"spare-executors":  isNumber(0, 64),
	"max-waiting":      isNumber(0, 1<<16),
	"listen":           hostport.Listen,
	"http":             func(text string) error { return cond(text != "", hostport.Listen, text) },
	"metrics-listen":   func(text string) error { return cond(text != "", hostport.Listen, text) },
	"address":          func(text string) error { return cond(text != "", isReachable, text) },
	"advertise":        func(text string) error { return cond(text != "", isAdvertised, text) },
	"worker-lease":     isDuration(time.Millisecond),
	"reconnect-grace":  isDuration(0),
	"restart-grace":    isDuration(time.Millisecond),
	"death-timeout":    isDuration(time.Millisecond),
	"stop-grace":       isDuration(0),
	"memory-wait":      isDuration(time.Millisecond),
	"timeout":          isDuration(time.Nanosecond),
	"within":           isDrainLimit,
	"election-timeout": isDurationUpTo(100*time.Millisecond, 30*time.Second),
	rcTimeout:          isDurationUpTo(worker.MinRCTimeout, worker.MaxRCTimeout),
	rcRetries:          isNumber(1, worker.MaxRCRetries),
}

// areLevels checks three shares, each at least as large as the one before that is not 0. The text
// may be in brackets, as pflag prints lists.
func areLevels(text string) error {
	parts := strings.Split(strings.Trim(text, "[]"), ",")
	last := 0.0
	for _, part := range parts {
		share, err := strconv.ParseFloat(part, 64)
		if err != nil || share < 0 || share > 1 || share != 0 && share < last {
			return fmt.Errorf("%s: three shares from 0 to 1 that increase, such as 0.7,0.8,0.95; 0 switches a step off", text)
		}
		last = max(last, share)
	}
	if len(parts) != 3 {
		return fmt.Errorf("%s: %d shares; give three, such as 0.7,0.8,0.95", text, len(parts))
	}
	return nil
}

func cond(apply bool, check func(string) error, text string) error {
	if apply {
		return check(text)
	}
	return nil
}

func oneOf(values ...string) func(string) error {
	return func(text string) error {
		if !slices.Contains(values, text) {
			last := len(values) - 1
			return fmt.Errorf("%s: %s or %s", text, strings.Join(values[:last], ", "), values[last])
		}
		return nil
	}
}

// isBytes returns a check for an amount of memory, or one of some words instead.
func isBytes(least, most uint64, words ...string) func(string) error {
	return func(text string) error {
		if slices.Contains(words, text) {
			return nil
		}
		n, err := humanize.ParseBytes(text)
		if err != nil || n < least || n > most {
			limits := ""
			if least > 0 {
				limits = ", at least " + size(least)
			}
			if most < math.MaxUint64 {
				limits += ", at most " + size(most)
			}
			or := ""
			for _, w := range words {
				if w != "" {
					or += ", or " + w
				}
			}
			return fmt.Errorf("%s: bytes such as 1GiB%s%s", text, limits, or)
		}
		return nil
	}
}

func isMemoryLimit(text string) error {
	if text == "auto" || text == "" {
		return nil
	}
	if share, err := strconv.ParseFloat(text, 64); err == nil && share > 0 && share <= 1 {
		return nil
	}
	if n, err := humanize.ParseBytes(text); err != nil || n < 1<<20 {
		return fmt.Errorf("%s: bytes such as 1GiB (at least 1MiB), a share up to 1, or auto", text)
	}
	return nil
}

func isDeviceMemory(text string) error {
	_, err := cuda.ParseSize(text)
	return err
}

// amounts reads --resources.
func amounts(texts map[string]string) (map[string]float64, error) {
	out := map[string]float64{}
	for name, text := range texts {
		amount, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(amount) || math.IsInf(amount, 0) || amount < 0 || name == "" || len(name) > 128 {
			return nil, fmt.Errorf("%s=%s: a name of 1 to 128 bytes and a finite amount of 0 or more", name, text)
		}
		out[name] = amount
	}
	return out, nil
}

// maxNamePrefix leaves room for the number that follows it: a worker's name has at most 128
// characters.
const maxNamePrefix = 120

// isName checks the prefix of workers' names, which appears in messages, tables and logs.
func isName(text string) error {
	if !utf8.ValidString(text) || len(text) > maxNamePrefix || strings.ContainsFunc(text, unicode.IsControl) {
		return fmt.Errorf("%q: up to %d bytes of UTF-8, without control characters", text[:min(len(text), maxNamePrefix)], maxNamePrefix)
	}
	return nil
}

// areAmounts checks resources in pflag's notation: [name=amount,...].
func areAmounts(text string) error {
	texts := map[string]string{}
	for _, pair := range strings.Split(strings.Trim(text, "[]"), ",") {
		if name, amount, ok := strings.Cut(pair, "="); ok {
			texts[name] = amount
		}
	}
	_, err := amounts(texts)
	return err
}

// areCommands checks executors in pflag's notation: [name=command,...]. A command may contain
// commas, so only the first entry can be checked here; the worker checks all.
func areCommands(text string) error {
	text = strings.Trim(text, "[]")
	if name, command, ok := strings.Cut(text, "="); text != "" && (!ok || name == "" || command == "") {
		return fmt.Errorf("%s: name=command", text)
	}
	return nil
}

func isNumber(least, most int) func(string) error {
	return func(text string) error {
		if n, err := strconv.Atoi(text); err != nil || n < least || n > most {
			return fmt.Errorf("%s: %d to %d", text, least, most)
		}
		return nil
	}
}

func isDuration(least time.Duration) func(string) error {
	return func(text string) error {
		d, err := time.ParseDuration(text)
		if err != nil || d < least {
			return fmt.Errorf("%s: a time such as 10s, of at least %v", text, least)
		}
		return nil
	}
}

func isDurationUpTo(least, most time.Duration) func(string) error {
	return func(text string) error {
		d, err := time.ParseDuration(text)
		if err != nil || d < least || d > most {
			return fmt.Errorf("%s: a time such as 10s, of %v to %v", text, least, most)
		}
		return nil
	}
}

// isDrainLimit reports whether the text is a limit of drains, as the API has it; 0: no limit.
func isDrainLimit(text string) error {
	if d, err := time.ParseDuration(text); err != nil || d < 0 || d > 30*24*time.Hour {
		return fmt.Errorf("%s: a time such as 10m, of at most 720h; 0 is without a limit", text)
	}
	return nil
}

func isReachable(text string) error {
	_, err := hostport.Dial(text)
	return err
}

func isAdvertised(text string) error {
	_, _, err := hostport.Advertise(text)
	return err
}
