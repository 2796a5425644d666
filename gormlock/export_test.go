package gormlock

import (
	"time"

	"gorm.io/gorm"
)

// Waiting counts the callers that wait for a group, in all queues of a plugin.
func Waiting(db *gorm.DB) (n int) {
	p, err := registered(db)
	if err != nil {
		panic(err)
	}
	p.queues.mu.Lock()
	defer p.queues.mu.Unlock()
	for _, l := range p.queues.all {
		n += len(l.waiting)
	}
	return n
}

// Queues counts the queues of a plugin. A queue exists while somebody waits or gets a turn.
func Queues(db *gorm.DB) int {
	p, err := registered(db)
	if err != nil {
		panic(err)
	}
	p.queues.mu.Lock()
	defer p.queues.mu.Unlock()
	return len(p.queues.all)
}

// SetGroupTimes changes how long a group lets callers in, and how long it may take; 0 is the default.
func SetGroupTimes(db *gorm.DB, open, all time.Duration) {
	p, err := registered(db)
	if err != nil {
		panic(err)
	}
	p.queues.mu.Lock()
	defer p.queues.mu.Unlock()
	p.queues.open, p.queues.limit = open, all
}
