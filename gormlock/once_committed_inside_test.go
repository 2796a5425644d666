package gormlock_test

import (
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/gormlock/optimistic"
)

// TestOnce_CommittedInsideThenConflict: a run is committed in its middle, and the plugin does not
// see that. Then it fails with an error after which Once usually runs again. It must not.
func TestOnce_CommittedInsideThenConflict(t *testing.T) {
	t.Parallel()
	onceDB(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		commit := func(tx *gorm.DB) error {
			raw, err := gormlock.SQLTx(tx)
			if err == nil {
				_, err = raw.Exec("COMMIT")
			}
			return err
		}
		if db.Name() == "mysql" { // as users meet it: a procedure with a transaction of its own
			ok(t, "CREATE", unprepared(db).Exec("CREATE PROCEDURE settle() COMMIT").Error)
			commit = func(tx *gorm.DB) error { return unprepared(tx).Exec("CALL settle()").Error }
		}
		runs := 0
		_, err := gormlock.Once(t.Context(), db, "pay:1", func(tx *gorm.DB) (receipt, error) {
			runs++
			r, err := charge(tx)
			if err != nil || runs > 1 {
				return r, err
			}
			ok(t, "commit", commit(tx))
			return r, optimistic.ErrStale // or a deadlock, or a busy SQLite
		})
		if n := orders(t, db); n != 1 || runs != 1 {
			t.Errorf("%d orders in %d runs, want 1 in 1", n, runs)
		}
		want(t, "Once", err, gormlock.ErrUnfinished)
		wantIdle(t, db, l, "pay:1")
	})
}
