package gormlock

import (
	"context"
	"slices"
)

// undoLog is what the end of a transaction decides about: the functions of AfterCommit and of
// OnRollback. Its savepoints stand between them, for ROLLBACK TO. The mutex of the transaction guards
// it.
type undoLog []undoEntry

const fewEntries = 1024

// undoEntry has one of the three: a savepoint, or a function for COMMIT or for a rollback.
type undoEntry struct {
	savepoint   string
	afterCommit func(ctx context.Context)
	onRollback  func()
	needed      func() bool // of onRollback
}

func (l *undoLog) add(e undoEntry) {
	if n := len(*l); n >= fewEntries && n == cap(*l) { // forget notes that nobody needs
		*l = slices.DeleteFunc(*l, func(e undoEntry) bool { return e.needed != nil && !e.needed() })
		*l = slices.Grow(*l, len(*l))
	}
	if e.savepoint == "" || len(*l) > 0 {
		*l = append(*l, e)
	}
}

// rolledBack undoes what came after a savepoint, or all.
func (l *undoLog) rolledBack(savepoint string) {
	for i, e := range slices.Backward(*l) {
		if e.savepoint != "" && e.savepoint == savepoint {
			return // it still stands
		}
		if e.onRollback != nil {
			e.onRollback()
		}
		*l = (*l)[:i]
	}
}

// released forgets a savepoint and those made after it. The rest stays.
func (l *undoLog) released(savepoint string) {
	for i, e := range slices.Backward(*l) {
		if e.savepoint != "" {
			*l = slices.Delete(*l, i, i+1)
		}
		if e.savepoint == savepoint {
			return
		}
	}
}

// committed ends the log and returns the functions to call.
func (l *undoLog) committed() (all []func(ctx context.Context)) {
	for _, e := range *l {
		if e.afterCommit != nil {
			all = append(all, e.afterCommit)
		}
	}
	*l = nil
	return all
}
