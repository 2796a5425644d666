package gormlock

import (
	"context"
	"database/sql"
	"fmt"
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

// EndGroups ends the groups that are at work as if they had taken too long.
func EndGroups(db *gorm.DB) {
	p, err := registered(db)
	if err != nil {
		panic(err)
	}
	p.queues.mu.Lock()
	defer p.queues.mu.Unlock()
	for _, q := range p.queues.all {
		if q.next != nil {
			q.next.cancel(fmt.Errorf("%w, more than %v", errGroupTime, q.next.limit))
		}
	}
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

// OnBegin calls fn before each transaction that begins in the database.
func OnBegin(db *gorm.DB, fn func()) {
	p := poolOf(db.ConnPool)
	p.ConnPool = &beginHook{p.ConnPool.(*sql.DB), fn}
}

type beginHook struct {
	*sql.DB
	fn func()
}

func (h *beginHook) BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error) {
	h.fn()
	return h.DB.BeginTx(ctx, opts)
}

func (h *beginHook) GetDBConn() (*sql.DB, error) { return h.DB, nil }
