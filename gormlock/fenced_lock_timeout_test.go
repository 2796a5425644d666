package gormlock_test

import (
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

// TestFenced_TheDatabaseWaitsLess: an earlier holder has the fence, and the database gives up the
// wait before WithWait is over. The error is the same.
func TestFenced_TheDatabaseWaitsLess(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Migrate", gormlock.Migrate(db))
		put(t, db, 42, 10)
		impatient := db
		switch db.Name() {
		case "mysql":
			impatient = withSetting(t, db, "innodb_lock_wait_timeout", "1")
		case "postgres":
			ok(t, "ALTER", db.Exec("ALTER DATABASE "+db.Migrator().CurrentDatabase()+" SET lock_timeout = 300").Error)
			pool(t, db).SetMaxIdleConns(0) // new connections have the setting
		default:
			return
		}
		fenced := gormlock.Guard("k", gormlock.Fenced(), gormlock.WithWait(30*time.Second))
		open := holder(t, db, 1).Scopes(fenced).Begin()
		ok(t, "take", take(open, 42))
		want(t, "the fence is held", take(holder(t, impatient, 2).Scopes(fenced), 42), core.ErrTaken)
		ok(t, "Rollback", open.Rollback().Error)
		wantLeft(t, db, 42, 10)
	})
}
