package gormlock

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
)

type plugin struct {
	locker  *core.Locker
	protect []any

	defaults guard // of all guards

	made atomic.Pointer[instruments]
}

const pluginName = "gormlock"

// registered returns the plugin of a database.
func registered(db *gorm.DB) (*plugin, error) {
	if p, ok := db.Plugins[pluginName].(*plugin); ok {
		return p, nil
	}
	return nil, ErrNotRegistered
}

var errNoLocker = errors.New("there is no Locker: call core.SetDefault when the process starts, or pass one to gormlock.New")

func (p *plugin) lockerInUse() (*core.Locker, error) {
	if p.locker != nil {
		return p.locker, nil
	}
	if l := core.Default(); l != nil {
		return l, nil
	}
	return nil, errNoLocker
}

// carries reports whether a context carries a lock on key.
func (p *plugin) carries(ctx context.Context, key string) bool {
	l, err := p.lockerInUse()
	return err == nil && l.Carries(ctx, key)
}

// complete adds to a demand what the options of New say.
func (p *plugin) complete(d demand) demand {
	d.wait = cmp.Or(d.wait, p.defaults.wait, defaultWait)
	d.fenced = d.fenced || p.defaults.fenced
	return d
}

// instruments returns what to report with. They are made when a Locker is there, because
// core.SetDefault may be called after New. Until then nothing is recorded.
func (p *plugin) instruments() *instruments {
	if i := p.made.Load(); i != nil {
		return i
	}
	l, err := p.lockerInUse()
	if err != nil {
		return noInstruments
	}
	p.made.CompareAndSwap(nil, newInstruments(l.MeterProvider()))
	return p.made.Load()
}

// instrumentsOf returns those of the plugin of db. Without a plugin nothing is recorded.
func instrumentsOf(db *gorm.DB) *instruments {
	if p, err := registered(db); err == nil {
		return p.instruments()
	}
	return noInstruments
}
