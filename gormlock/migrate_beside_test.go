package gormlock_test

import (
	"context"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock"
)

// TestMigrate_BesideWriters: a process that starts does not wait for an open Once of another one.
// All other calls of Once would wait behind it.
func TestMigrate_BesideWriters(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() == "sqlite" { // one writer at a time
			return
		}
		ok(t, "Migrate", gormlock.Migrate(db))
		writer := db.Begin()
		ok(t, "Begin", writer.Error)
		defer writer.Rollback()
		ok(t, "INSERT", writer.Exec("INSERT INTO onelane_once (name, attempt, created_at) VALUES ('k', 'a', 1)").Error)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		ok(t, "Migrate beside a writer", gormlock.Migrate(db.WithContext(ctx)))
	})
}
