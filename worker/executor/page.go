package executor

// The control page tells, also after the death of a process, which run it was working on.

// called reports whether a process has called the function of the run that it works on. A process
// that does not tell so counts as if it had. REQUIRES: slot.mu is held.
func (p *process) called(q *queued) bool {
	return q != nil && (!p.writesCalled || p.page.Called() == q.ordinal)
}

// killedFromOutside reports whether SIGKILL ended the process, as far as is known neither sent by
// this worker nor for lack of memory. REQUIRES: close has returned.
func (p *process) killedFromOutside() bool {
	return p.cause.Signal == "SIGKILL" && !p.cause.OutOfMemory && p.fault == nil
}

// atWork returns the run that a process is working on, or that it was working on when it died;
// nil if there is none. REQUIRES: mu is held.
func (s *slot) atWork(p *process) *queued {
	begun, ended := p.page.Begun(), p.page.Ended()
	for _, q := range s.queue {
		if q.ordinal == 0 {
			continue
		}
		// A process that does not use the control page handles its runs in the order in which they
		// were sent.
		if begun == 0 && ended == 0 || q.ordinal == begun && ended < begun {
			return q
		}
	}
	return nil
}

// blamed returns the run that a dead process had begun and not ended, nil if there is none.
// If the control page names no begun run, first is the first run that was sent.
// In that case there are two explanations: the process does not write the page and may have died of
// that run, or it died before it began any. So that run is repeated, and blamed only when maxDeaths
// processes have died like this. REQUIRES: mu is held.
func (s *slot) blamed(p *process) (blamed, first *queued) {
	q := s.atWork(p)
	if q != nil && p.page.Begun() == 0 && q.stopAt.IsZero() {
		return nil, q
	}
	return q, nil
}
