package coord

import (
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// topic is a list of messages, of which the last ones are kept. It exists from its first message
// on, or while calls wait for one.
type topic struct {
	name string
	// base is the number after which its messages are numbered, number that of the last one.
	base     uint64
	number   uint64
	messages []*message
	bytes    uint64
	waiting  []*request
}

type message struct {
	number uint64
	at     time.Time
	value  *stored
}

// reading is a topic that a client reads. read is the number of the last message that the client
// has, told the one of the last message that it knows of.
type reading struct {
	namespace, name string
	read, told      uint64
}

// TopicPosition is the number of the last message of a topic.
type TopicPosition struct {
	Name   string
	Number uint64
}

func (a ReadTopic) same(other Ask) bool { return other == Ask(a) }

func (m *Machine) topic(s *space, name string) *topic {
	t := s.topics[name]
	if t == nil {
		t = m.newTopic(name)
		s.topics[name] = t
		m.addName(s, name)
	}
	return t
}

func (m *Machine) newTopic(name string) *topic {
	return &topic{name: name, base: m.config.Messages, number: m.config.Messages}
}

func (m *Machine) tidyTopic(s *space, t *topic) {
	if t.number == t.base && len(t.waiting) == 0 {
		delete(s.topics, t.name)
		m.dropName(s, t.name)
	}
}

func (m *Machine) enterTopic(r *request, ask ReadTopic) {
	t := m.topic(r.space, ask.Name)
	if ask.Later {
		ask.After, ask.Later = t.number, false
		r.ask = ask
	}
	if !m.readTopic(r, t) {
		t.waiting = append(t.waiting, r)
	}
}

// reads notes that a client reads a topic. It forgets the topic that was noted first if there are
// too many.
func (m *Machine) reads(all []reading, s *space, ask ReadTopic) []reading {
	at := slices.IndexFunc(all, func(r reading) bool { return r.name == ask.Name && r.namespace == s.name })
	if at < 0 {
		if len(all) == topicsRead {
			all = slices.Delete(all, 0, 1)
		}
		at, all = len(all), append(all, reading{namespace: s.name, name: ask.Name})
	}
	t := s.topics[ask.Name]
	if t == nil {
		t = m.newTopic(ask.Name)
	}
	r := &all[at]
	r.read = t.after(ask.After)
	if ask.Later {
		r.read = t.number
	}
	r.told = max(r.told, r.read)
	return all
}

// after returns the number of the message behind which a read begins. A number of the future is one
// of an earlier life of the scheduler, and one below the first of an earlier start: the read begins
// with the oldest message.
func (t *topic) after(number uint64) uint64 {
	if number > t.number {
		return t.base
	}
	return max(number, t.base)
}

// NewMessages appends the topics that a client reads and that have messages of which it was not
// told. again: it may not have received what it was told.
func (m *Machine) NewMessages(id ids.ClientID, again bool, out []TopicPosition) []TopicPosition {
	c := m.clients[id]
	if c == nil {
		return out
	}
	for i := range c.reads {
		r := &c.reads[i]
		if again {
			r.told = r.read
		}
		s := m.spaces[r.namespace]
		if s == nil || s.topics[r.name] == nil {
			continue
		}
		if number := s.topics[r.name].number; number > r.told {
			r.told = number
			out = append(out, TopicPosition{r.name, number})
		}
	}
	return out
}

// readTopic gives messages to a request, if there are any for it. The request misses those of this
// topic that are not kept.
func (m *Machine) readTopic(r *request, t *topic) bool {
	ask := r.ask.(ReadTopic)
	ask.After = t.after(ask.After)
	if len(t.messages) == 0 || ask.After >= t.number {
		return false
	}
	first := t.messages[0].number
	answer := Answer{Met: true}
	if ask.After+1 < first {
		answer.Missed = first - 1 - ask.After
		ask.After = first - 1
	}
	var got []*stored
	bytes := uint64(0)
	for _, msg := range t.messages[ask.After+1-first:] {
		bytes += msg.value.size()
		if n := len(answer.Messages); n == ask.Most || n > 0 && bytes > batchBytes {
			break
		}
		answer.Messages = append(answer.Messages, Message{msg.number, msg.at, msg.value.Value})
		answer.Number = msg.number
		if msg.value.Hold != 0 {
			msg.value.places++
			got = append(got, msg.value)
		}
	}
	m.meet(r, answer, got...)
	return true
}

// Publish appends messages to a topic. It returns the number of the last one.
func (m *Machine) Publish(now time.Time, namespace, name string, values []Value, out []Effect) (uint64, []Effect, *Error) {
	m.begin(now, out)
	s := m.space(namespace)
	var names []string
	if s.topics[name] == nil {
		names = append(names, name)
	}
	bytes := uint64(0)
	for i := range values {
		bytes += values[i].size()
	}
	if err := m.roomFor(s, ReadTopic{Name: name}.String(), bytes, names...); err != nil {
		m.tidySpace(s)
		return 0, m.end(), err
	}
	t := m.topic(s, name)
	for _, value := range values {
		if t.number == t.base {
			m.put(TopicRow{s.name, name, t.base})
		}
		t.number++
		msg := &message{t.number, now, m.store(s.name, value)}
		t.messages = append(t.messages, msg)
		m.put(MessageRow{s.name, name, t.number, now, m.keep(msg.value)})
		t.bytes += value.size()
	}
	line := t.waiting
	t.waiting = nil
	for _, r := range line {
		if !m.readTopic(r, t) {
			t.waiting = append(t.waiting, r)
		}
	}
	for len(t.messages) > m.config.TopicMessages || t.bytes > m.config.TopicBytes && len(t.messages) > 1 {
		old := t.messages[0]
		t.messages[0] = nil
		t.messages = t.messages[1:]
		t.bytes -= old.value.size()
		m.gone(MessageRow{Namespace: s.name, Name: name, Number: old.number})
		m.unstore(old.value)
	}
	return t.number, m.end(), nil
}

// TopicInfo describes a topic.
type TopicInfo struct {
	Name     string
	Number   uint64
	Messages int
	Bytes    uint64
}

// Topics describes the topics of a namespace that have had a message, by name.
func (m *Machine) Topics(namespace string) (infos []TopicInfo) {
	s := m.spaces[namespace]
	if s == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(s.topics)) {
		if t := s.topics[name]; t.number > t.base {
			infos = append(infos, TopicInfo{Name: name, Number: t.number, Messages: len(t.messages), Bytes: t.bytes})
		}
	}
	return infos
}
