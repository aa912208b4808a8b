package mirror

// UsedBytes returns the number of allocated bytes.
func (m *Mirror) UsedBytes() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.space.Used()
}
