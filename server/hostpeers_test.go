package server_test

import (
	"testing"
	"testing/synctest"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
)

// Workers with GPUs of one host learn of each other when the second one registers. Workers that are
// not on one host do not.
func TestWorkersOfOneHostLearnOfEachOther(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.t
		join := func(name, host string, device pb.DeviceKind) *zero {
			r := registration(name)
			r.Host, r.Device, r.DataAddress = host, device, name+":1"
			w := c.join(c.conn, r, succeed)
			synctest.Wait()
			return w
		}
		const cuda, cpu = pb.DeviceKind_DEVICE_KIND_CUDA, pb.DeviceKind_DEVICE_KIND_HOST
		first := join("first", "a", cuda)
		others := []*zero{join("elsewhere", "b", cuda), join("processor", "a", cpu)}
		if m := first.last; len(m.GetPeers()) > 0 {
			t.Errorf("the first worker was told %v", m)
		}
		second := join("second", "a", cuda)
		for _, pair := range [][2]*zero{{first, second}, {second, first}} {
			told := pair[0].last.GetPeers()
			if len(told) != 1 || told[0].GetWorkerId() != pair[1].id || !told[0].GetSameHost() || told[0].GetDataAddress() == "" {
				t.Errorf("worker %d was told %v", pair[0].id, told)
			}
		}
		for _, w := range others {
			if len(w.last.GetPeers()) > 0 {
				t.Errorf("worker %d was told %v", w.id, w.last)
			}
		}
	})
}
