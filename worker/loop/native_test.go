package loop

import (
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/native"
)

// handSlots are native slots that only keep what they were told to start: the test hands it back.
type handSlots struct{ started []*native.Run }

func (s *handSlots) Start(_ int, r *native.Run) { s.started = append(s.started, r) }

func (s *handSlots) Open(native.Host) {}

func (s *handSlots) Close() {}

func (s *handSlots) Stop(int, *native.Run) {}

func (s *handSlots) TakeBack(int, *native.Run) {}

func (s *handSlots) Registered(uint32) {}

func (s *handSlots) Load(bool, int) {}

func (s *handSlots) GiveWay() {}

func (s *handSlots) InPlace() device.InPlace { return nil }

func (s *handSlots) OutputBytes(device.Call) []uint64 { return nil }
