package gormlock

import (
	"context"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// GORM's logger prints the line of the first caller that is neither GORM's nor in a file *.gen.go.
// The name of this file keeps that the user's line.

// shortestWait is how long a statement waits for a lock before that is kept out of its SQL time.
const shortestWait = time.Millisecond

// notSQLTime keeps the wait for a lock, which began at start and is over now, out of the time that
// the statement's logger sees.
func notSQLTime(db *gorm.DB, start time.Time) {
	now := time.Now()
	if now.Sub(start) < shortestWait {
		return
	}
	config := *db.Config // other sessions share it
	if w, ok := config.Logger.(*waited); ok {
		config.Logger = w.Interface
	}
	config.Logger = &waited{config.Logger, now}
	db.Config = &config
}

// waited is a logger for which no statement began before the wait for a lock was over. It has no
// effect on later statements, so it may stay in a session.
type waited struct {
	logger.Interface
	over time.Time
}

// Trace implements logger.Interface.
func (w *waited) Trace(ctx context.Context, begin time.Time, fc func() (string, int64), err error) {
	if begin.Before(w.over) {
		begin = w.over
	}
	w.Interface.Trace(ctx, begin, fc, err)
}

// ParamsFilter implements gorm.ParamsFilter, which GORM asks its logger for.
func (w *waited) ParamsFilter(ctx context.Context, sql string, params ...any) (string, []any) {
	if filter, ok := w.Interface.(gorm.ParamsFilter); ok {
		return filter.ParamsFilter(ctx, sql, params...)
	}
	return sql, params
}
