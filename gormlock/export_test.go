package gormlock

import (
	"time"

	"gorm.io/gorm"
)

// Waiting counts the callers that wait for a group, in all lines of a plugin.
func Waiting(db *gorm.DB) (n int) {
	p, err := registered(db)
	if err != nil {
		panic(err)
	}
	p.lines.mu.Lock()
	defer p.lines.mu.Unlock()
	for _, l := range p.lines.all {
		n += len(l.waiting)
	}
	return n
}

// Lines counts the lines of a plugin, which are there while somebody waits or is let in.
func Lines(db *gorm.DB) int {
	p, err := registered(db)
	if err != nil {
		panic(err)
	}
	p.lines.mu.Lock()
	defer p.lines.mu.Unlock()
	return len(p.lines.all)
}

// SetGroupTimes changes how long a group lets callers in, and how long it may take; 0 is the default.
func SetGroupTimes(db *gorm.DB, open, all time.Duration) {
	p, err := registered(db)
	if err != nil {
		panic(err)
	}
	p.lines.mu.Lock()
	defer p.lines.mu.Unlock()
	p.lines.open, p.lines.time = open, all
}
