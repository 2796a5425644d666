package gormlock_test

import (
	"context"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

type foundKey struct{}

// TestTelemetry_TracerRestores: the tracing plugins of GORM (since its pull request 50) and of
// uptrace (since 85) put back the context that they found. GORM runs that after COMMIT.
func TestTelemetry_TracerRestores(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		before := func(tx *gorm.DB) {
			ctx := tx.Statement.Context
			tx.Statement.Context = context.WithValue(ctx, foundKey{}, ctx)
		}
		after := func(tx *gorm.DB) {
			if found, ok := tx.Statement.Context.Value(foundKey{}).(context.Context); ok {
				tx.Statement.Context = found
			}
		}
		ok(t, "Register", db.Callback().Update().Before("gorm:update").Register("otel:before:update", before))
		ok(t, "Register", db.Callback().Update().After("gorm:update").Register("otel:after:update", after))
		row := db.Model(&Stock{}).Where("sku = ?", 42).Scopes(gormlock.Guard("k"))
		ok(t, "first", row.Update("left", 9).Error)
		if err := row.Statement.Context.Err(); err != nil {
			t.Errorf("the statement's context: %v", err)
		}
		ok(t, "second", row.Update("left", 8).Error)
		wantLeft(t, db, 42, 8)
		wantIdle(t, db, l, "k")
	})
}
