package mirror

import "runtime"

// UsedBytes returns the number of allocated bytes.
func (m *Mirror) UsedBytes() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.space.Used()
}

// AwaitWaiting returns when n calls of Stage wait for a place.
func AwaitWaiting(m *Mirror, n int) {
	for {
		m.mu.Lock()
		waiting := len(m.stages.waiting)
		m.mu.Unlock()
		if waiting == n {
			return
		}
		runtime.Gosched()
	}
}
