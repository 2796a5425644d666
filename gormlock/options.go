package gormlock

import (
	"fmt"
	"time"
)

// defaultWait is how long a guard waits for its keys.
const defaultWait = 5 * time.Second

// Option configures the plugin of [New]. A nil Option is ignored.
type Option interface{ applyPlugin(*plugin) }

// GuardOption configures one [Guard]. A nil one is ignored, the later of two wins.
type GuardOption interface{ applyGuard(*guard) }

// TransactionOption configures one [Transaction]. A nil one is ignored, the later of two wins.
type TransactionOption interface{ applyTransaction(*guard) }

type pluginOption func(*plugin)

func (o pluginOption) applyPlugin(p *plugin) { o(p) }

// SharedOption is a [GuardOption], a [TransactionOption] and a [OnceOption].
type SharedOption interface {
	GuardOption
	TransactionOption
	OnceOption
}

type sharedOption func(*guard)

func (o sharedOption) applyGuard(g *guard)       { o(g) }
func (o sharedOption) applyTransaction(g *guard) { o(g) }

// WithWait sets how long a guard waits for its keys at most, and not longer than its context lives. Default 5 s; it
// must be positive. Where several guards come together, the longest of their waits counts.
func WithWait(d time.Duration) SharedOption {
	return sharedOption(func(g *guard) {
		g.wait, g.err = d, nil
		if d <= 0 {
			g.err = fmt.Errorf("WithWait(%v): it must be positive", d)
		}
	})
}
