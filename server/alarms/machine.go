// Package alarms is a Machine: it decides which trouble an operator is told of. Observations of the
// cluster go in, with their times; alarms come out when they are raised, change or end.
//
// A rule judges each observation: a subject is bad, good, or between the two. An alarm is raised
// when its subject was bad for the rule's time without a break, and ends when it was not bad for
// another time. Between the two thresholds nothing begins and nothing ends. So a figure that moves
// around one threshold raises one alarm, not many.
package alarms

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Kind is the kind of trouble. The values equal those of the API.
type Kind uint8

// Kinds; docs/runbooks has a page for each.
const (
	Spilling      Kind = 1
	SlowRoute     Kind = 2
	GPUThrottled  Kind = 3
	GPUError      Kind = 4
	NoWorker      Kind = 5
	JournalLags   Kind = 6
	TasksFail     Kind = 7
	WorkerDies    Kind = 8
	DiskFull      Kind = 9
	MemoryFull    Kind = 10
	SchedulerSlow Kind = 11
	SlowReader    Kind = 12
	PeerAway      Kind = 13
)

// Kinds lists all kinds.
func Kinds() []Kind {
	return []Kind{Spilling, SlowRoute, GPUThrottled, GPUError, NoWorker, JournalLags, TasksFail, WorkerDies, DiskFull, MemoryFull, SchedulerSlow, SlowReader, PeerAway}
}

// String returns the name in ids, metrics and the names of runbooks.
func (k Kind) String() string {
	names := [...]string{"unknown", "spilling", "slow_route", "gpu_throttled", "gpu_error", "no_worker", "journal_lags", "tasks_fail", "worker_dies",
		"disk_full", "memory_full", "scheduler_slow", "slow_reader", "peer_away"}
	if int(k) < len(names) {
		return names[k]
	}
	return names[0]
}

// Severity says how urgent an alarm is. The values equal those of the API.
type Severity uint8

// Severities. With a warning, work goes on, but slower than it could, or towards a failure. In a
// critical state, it stands still or is lost.
const (
	Warning  Severity = 1
	Critical Severity = 2
)

// String returns the name in metrics and texts.
func (s Severity) String() string {
	if s == Critical {
		return "critical"
	}
	return "warning"
}

// Alarm is trouble that lasts.
type Alarm struct {
	// ID is the kind and the subject.
	ID       string
	Kind     Kind
	Severity Severity
	// Since is the time at which the subject was bad for the first time.
	Since   time.Time
	Subject string
	// Text says in plain words what happens and what follows. Remedy says what to do, most often a
	// command to type.
	Text, Remedy string
}

// EffectKind says what became of an alarm.
type EffectKind uint8

// Kinds of effects.
const (
	Raised EffectKind = iota + 1
	// Changed: the severity is another one.
	Changed
	Ended
)

// Effect tells of one alarm.
type Effect struct {
	Kind  EffectKind
	Alarm Alarm
}

// shownAlarms bounds the alarms that are raised at a time: an operator reads no more of them, and
// their causes are fewer.
const shownAlarms = 200

// Machine keeps the alarms. It is not safe for concurrent use.
type Machine struct {
	policy Policy
	now    time.Time
	// conditions has exactly the subjects that are bad, or whose alarm has not ended.
	conditions map[string]*condition
	raised     int // conditions with an alarm
	memory     memory
	history    history
}

// condition is the trouble of one subject. goodSince is zero while it is bad or between.
type condition struct {
	alarm     Alarm
	raised    bool
	goodSince time.Time
}

// judgement is what a rule says of one subject.
type judgement struct {
	bad      bool // otherwise it is between
	severity Severity
	text     string
	remedy   string
}

// judgements has the subjects that are bad or between; all others are good.
type judgements map[string]found

type found struct {
	kind    Kind
	subject string
	judgement
}

func (j judgements) add(kind Kind, subject string, what judgement) {
	id := kind.String() + "/" + subject
	// Of two findings about one subject, the worse one counts.
	if old, known := j[id]; known && rank(&old.judgement) >= rank(&what) {
		return
	}
	j[id] = found{kind, subject, what}
}

func rank(j *judgement) int {
	if !j.bad {
		return 0
	}
	return int(j.severity)
}

// New makes a machine without alarms. Zero fields of the policy mean the defaults.
func New(policy Policy) *Machine {
	return &Machine{policy: policy.withDefaults(), conditions: map[string]*condition{}, memory: newMemory()}
}

// Step judges an observation and returns what became of alarms, in the order of their ids.
// REQUIRES: now does not go back.
func (m *Machine) Step(now time.Time, seen *Observed) (effects []Effect) {
	m.now = now
	verdicts := m.judge(seen)
	ids := slices.Sorted(maps.Keys(verdicts))
	for id := range m.conditions { // order-free: they are sorted below
		if _, judged := verdicts[id]; !judged {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		v, judged := verdicts[id]
		if e, changed := m.apply(id, v, judged); changed {
			effects = append(effects, e)
		}
	}
	return effects
}

// apply applies the judgement of one subject. judged is false if it is good.
func (m *Machine) apply(id string, v found, judged bool) (Effect, bool) {
	c := m.conditions[id]
	switch {
	case judged && v.bad:
		if c == nil {
			c = &condition{alarm: Alarm{ID: id, Kind: v.kind, Subject: v.subject, Since: m.now}}
			m.conditions[id] = c
			m.history.add(m.now, id, "bad", v.text)
		} else if !c.goodSince.IsZero() {
			m.history.add(m.now, id, "bad again", v.text)
		}
		c.goodSince = time.Time{}
		before := c.alarm.Severity
		c.alarm.Severity, c.alarm.Text, c.alarm.Remedy = v.severity, v.text, v.remedy
		switch {
		case c.raised && before != v.severity:
			m.history.add(m.now, id, "now "+v.severity.String(), v.text)
			return Effect{Changed, c.alarm}, true
		case !c.raised && m.now.Sub(c.alarm.Since) >= m.policy.raiseAfter(v.kind) && m.raised < shownAlarms:
			c.raised = true
			m.raised++
			m.history.add(m.now, id, "raised as "+v.severity.String(), v.text)
			return Effect{Raised, c.alarm}, true
		}
	case c == nil:
	case !c.raised:
		delete(m.conditions, id) // It was not bad for long enough.
		m.history.add(m.now, id, "not bad any more, before it was raised", "")
	case judged: // The subject is between good and bad: a raised alarm stays, with its present figures.
		c.goodSince = time.Time{}
		c.alarm.Text = v.text
	case c.goodSince.IsZero() && m.policy.endAfter(c.alarm.Kind) > 0:
		c.goodSince = m.now
		m.history.add(m.now, id, "good", "")
	case m.now.Sub(c.goodSince) >= m.policy.endAfter(c.alarm.Kind):
		delete(m.conditions, id)
		m.raised--
		m.history.add(m.now, id, "ended", "")
		return Effect{Ended, c.alarm}, true
	}
	return Effect{}, false
}

// Alarms returns the alarms: critical ones first, then the oldest first.
func (m *Machine) Alarms() []Alarm {
	list := make([]Alarm, 0, m.raised)
	for _, c := range m.conditions { // order-free: they are sorted below
		if c.raised {
			list = append(list, c.alarm)
		}
	}
	slices.SortFunc(list, func(a, b Alarm) int {
		return cmp.Or(cmp.Compare(b.Severity, a.Severity), a.Since.Compare(b.Since), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// Check reports a broken invariant.
func (m *Machine) Check() error {
	raised := 0
	for id, c := range m.conditions { // order-free: any error will do
		a := &c.alarm
		switch {
		case a.ID != id || a.ID != a.Kind.String()+"/"+a.Subject:
			return fmt.Errorf("alarm %s is filed as %s", a.ID, id)
		case a.Severity != Warning && a.Severity != Critical:
			return fmt.Errorf("alarm %s has severity %d", id, a.Severity)
		case a.Subject == "" || a.Text == "" || a.Remedy == "":
			return fmt.Errorf("alarm %s lacks its subject, text or remedy: %+v", id, *a)
		case a.Since.After(m.now) || c.goodSince.After(m.now):
			return fmt.Errorf("alarm %s began later than now", id)
		case !c.raised && !c.goodSince.IsZero():
			return fmt.Errorf("alarm %s ends and was never raised", id)
		}
		if c.raised {
			raised++
		}
	}
	if raised != m.raised || raised > shownAlarms {
		return fmt.Errorf("%d alarms are raised, %d counted, %d allowed", raised, m.raised, shownAlarms)
	}
	return m.memory.check()
}
