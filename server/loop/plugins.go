package loop

import (
	"context"

	"github.com/millrace/millrace/server/plugins"
)

// Plugins gives the machine of plugins to change, and records what changes of its rows.
func (l *Loop) Plugins(ctx context.Context, registers bool, change func(*plugins.Machine) []plugins.Effect) error {
	var refused error
	err := l.inspect(ctx, func() {
		if registers {
			refused = l.refuseNew()
		}
		if refused != nil {
			return
		}
		for _, effect := range change(l.plugins) {
			if effect.Kind == plugins.EffectChanged {
				l.note(effect.Changed)
			}
		}
	})
	if err != nil {
		return err
	}
	return refused
}
