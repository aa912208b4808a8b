package loop

import "testing"

func TestLivesCallNoTwoTasksByOneNumber(t *testing.T) {
	const tasks = 1 << 31
	for life := range uint64(8) {
		if a, b := firstTask(life), firstTask(life+1); a+tasks > b || b >= 1<<48 {
			t.Errorf("life %d begins at %d, the next one at %d", life, a, b)
		}
	}
	one, other := New(Config{}), New(Config{})
	if one.Cluster().Life == 0 || one.Cluster().Life == other.Cluster().Life {
		t.Errorf("lives %x and %x", one.Cluster().Life, other.Cluster().Life)
	}
}
