package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/millrace/millrace/server/sched"
)

// setLimit sets one of the limits of a namespace from its text.
type setLimit func(of *sched.NamespaceLimits, text string) error

func setWeight(of *sched.NamespaceLimits, text string) error {
	weight, err := strconv.ParseFloat(text, 64)
	if err != nil || !(weight >= 0.01 && weight <= 1000) {
		return fmt.Errorf("%q: a weight from 0.01 to 1000", text)
	}
	of.Weight = weight
	return nil
}

func setTasks(of *sched.NamespaceLimits, text string) error {
	tasks, err := strconv.ParseUint(text, 10, 64)
	if err != nil || tasks == 0 {
		return fmt.Errorf("%q: a number of tasks, at least 1", text)
	}
	of.Tasks = tasks
	return nil
}

func setMemory(of *sched.NamespaceLimits, text string) error {
	bytes, err := humanize.ParseBytes(text)
	if err != nil || bytes == 0 {
		return fmt.Errorf("%q: bytes, such as 1GiB", text)
	}
	of.Bytes = bytes
	return nil
}

// addLimits adds limits such as research=3 to those of namespaces.
func addLimits(to map[string]sched.NamespaceLimits, texts []string, set setLimit) error {
	for _, text := range texts {
		name, value, found := strings.Cut(text, "=")
		if !found || name == "" {
			return fmt.Errorf("%q: a namespace and its limit, such as research=3; * is for all others", text)
		}
		limits := to[name]
		if err := set(&limits, value); err != nil {
			return fmt.Errorf("namespace %s: %w", name, err)
		}
		to[name] = limits
	}
	return nil
}

// areNamespaceLimits checks a list of limits. It may be in brackets, as pflag prints lists.
func areNamespaceLimits(set setLimit) func(text string) error {
	return func(text string) error {
		if text = strings.Trim(text, "[]"); text == "" {
			return nil
		}
		return addLimits(map[string]sched.NamespaceLimits{}, strings.Split(text, ","), set)
	}
}

// namespaceLimits returns the limits of namespaces from the settings. A namespace that is named
// without one of the limits has that of "*".
func namespaceLimits(weights, tasks, memory []string) (map[string]sched.NamespaceLimits, error) {
	limits := map[string]sched.NamespaceLimits{}
	for _, one := range []struct {
		texts []string
		set   setLimit
	}{{weights, setWeight}, {tasks, setTasks}, {memory, setMemory}} {
		if err := addLimits(limits, one.texts, one.set); err != nil {
			return nil, err
		}
	}
	others := limits["*"]
	for name, own := range limits { // order-free: each is completed on its own
		if own.Weight == 0 {
			own.Weight = others.Weight
		}
		if own.Tasks == 0 {
			own.Tasks = others.Tasks
		}
		if own.Bytes == 0 {
			own.Bytes = others.Bytes
		}
		limits[name] = own
	}
	return limits, nil
}
