package web

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/server/schedapi"
)

// peerCollector reads the figures of one of several schedulers when Prometheus scrapes them.
type peerCollector struct {
	peers                                                         schedapi.Peers
	leads, hasLeader, voters, term, last, committed, applied, age *prometheus.Desc
	up, behind, silence                                           *prometheus.Desc
}

// PeerMetrics returns the metrics of one of several schedulers, also of one that does not lead. The
// leader adds those of the others.
func PeerMetrics(peers schedapi.Peers) prometheus.Collector {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("millrace_"+name, help, labels, nil)
	}
	return &peerCollector{
		peers:     peers,
		leads:     describe("raft_is_leader", "1 if this scheduler leads."),
		hasLeader: describe("raft_has_leader", "1 if this scheduler leads, or knows the one that does."),
		voters:    describe("raft_voters", "Schedulers that count for a majority."),
		term:      describe("raft_term", "Number of the last election."),
		last:      describe("raft_last_index", "Index of the last entry in the log of this scheduler."),
		committed: describe("raft_commit_index", "Index of the last entry that most schedulers have."),
		applied:   describe("raft_applied_index", "Index of the last entry that this scheduler has carried out."),
		age:       describe("raft_last_contact_seconds", "Time since this scheduler has heard of the leader; 0 for the leader."),
		up:        describe("raft_peer_up", "1 if the scheduler answers the leader.", "peer"),
		behind:    describe("raft_peer_behind_entries", "Entries of the log that the scheduler lacks.", "peer"),
		silence:   describe("raft_peer_last_contact_seconds", "Time since the scheduler has heard of the leader.", "peer"),
	}
}

// Describe is part of prometheus.Collector.
func (c *peerCollector) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{c.leads, c.hasLeader, c.voters, c.term, c.last, c.committed, c.applied, c.age, c.up, c.behind, c.silence} {
		to <- desc
	}
}

// followed is the silence from which a scheduler does not count as one that knows a leader: the
// others have begun an election long before.
const followed = 5 * time.Second

// Collect is part of prometheus.Collector.
func (c *peerCollector) Collect(to chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	is := func(yes bool) float64 {
		if yes {
			return 1
		}
		return 0
	}
	own := c.peers.Own()
	gauge(c.leads, is(own.Leads))
	gauge(c.hasLeader, is(own.Leads || own.Leader != "" && own.Silence < followed))
	gauge(c.voters, float64(own.Voters))
	gauge(c.term, float64(own.Term))
	gauge(c.last, float64(own.Last))
	gauge(c.committed, float64(own.Committed))
	gauge(c.applied, float64(own.Applied))
	gauge(c.age, own.Silence.Seconds())
	for _, p := range c.peers.Seen() {
		gauge(c.up, is(p.Role != schedapi.PeerAway), p.Address)
		gauge(c.behind, float64(p.Behind), p.Address)
		gauge(c.silence, p.Silence.Seconds(), p.Address)
	}
}
