package gormlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// TestRollback_WithoutAnswer: a server that does not answer ROLLBACK keeps neither the caller,
// whose context has ended, nor the key.
func TestRollback_WithoutAnswer(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() != "postgres" {
			return // the driver of MySQL interrupts no ROLLBACK, see readTimeout; SQLite has no server
		}
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Item{}))
		put(t, db, 42, 10)
		proxied, p := behindProxy(t, db)
		l := locker(t, backendtest.Memory(), core.WithTTL(time.Minute))
		ok(t, "Use", proxied.Use(gormlock.New(l)))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() {
			done <- gormlock.Transaction(proxied.WithContext(ctx), "k", func(tx *gorm.DB) error {
				err := tx.Take(&Stock{}, "sku = 42").Error
				p.do.Store(lose)
				cancel()
				return errors.Join(err, errors.New("the buyer has no money"))
			})
		}()
		select {
		case err := <-done:
			if err == nil {
				t.Error("it succeeds")
			}
		case <-time.After(check.Patience):
			t.Fatalf("the context ended long ago, and Transaction has not returned; the key is locked: %v", held(t, l, "k"))
		}
		if held(t, l, "k") {
			t.Error("the key is still locked")
		}
	})
}
