package gormlock

import (
	"errors"
	"reflect"

	"github.com/onelane/onelane/internal/sqlerr"
	"github.com/onelane/onelane/internal/undone"
)

// answered notes an error of the connection, and returns it.
func (t *transaction) answered(err error) error {
	if err != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.answer = err
	}
	return err
}

// rolledBack is rolledBackLocked, for those who do not hold t.mu.
func (t *transaction) rolledBack(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rolledBackLocked(err)
}

// rolledBackLocked marks the error of a transaction that is rolled back, if it comes from the guard or
// the database. Any other error is that of a function, which may have done something elsewhere. A
// value or a constraint that the database refuses has no mark, because trying again would not help.
func (t *transaction) rolledBackLocked(err error) error {
	if errors.Is(err, ErrCommitUnknown) || errors.Is(t.failed, ErrCommitUnknown) {
		return err
	}
	answered := t.answer != nil && reflect.TypeOf(t.answer).Comparable() && !sqlerr.Refused(t.answer)
	ours := func(err error) bool {
		return err == sqlerr.ErrStale || sqlerr.Passing(err) || answered && err == t.answer
	}
	if undone.Certain(err, ours) {
		return undone.Mark(err)
	}
	return err
}
