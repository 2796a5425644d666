package gormlock_test

import (
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/internal/sqlrelay"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// behindPgpool opens db through a proxy that reads at a standby until a transaction writes. The
// standby has 42 as it was long ago.
func behindPgpool(t *testing.T, db *gorm.DB, old int64) *gorm.DB {
	t.Helper()
	split := &sqlrelay.Relay{Primary: pool(t, db), Replica: pool(t, beside(t, db, "standby", old)), UntilWrite: true}
	return through(t, db, split)
}

// TestTransaction_BehindPgpool is what docs/operations.md says: the sale of the README needs
// ForUpdate or Fenced there.
func TestTransaction_BehindPgpool(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, plain *gorm.DB) {
		if plain.Name() != "postgres" {
			return
		}
		ok(t, "Migrate", gormlock.Migrate(plain))
		ok(t, "AutoMigrate", plain.AutoMigrate(&Stock{}, &Item{}))
		put(t, plain, 42, 0) // sold out, which the standby does not know
		db := behindPgpool(t, plain, 1)
		ok(t, "Use", db.Use(gormlock.New(locker(t, backendtest.Memory()))))
		read := func(scope func(*gorm.DB) *gorm.DB, opts ...gormlock.TransactionOption) (s Stock) {
			ok(t, "Transaction", gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
				return tx.Scopes(scope).Take(&s, "sku = ?", 42).Error
			}, opts...))
			return s
		}
		plainly := func(tx *gorm.DB) *gorm.DB { return tx }
		if s := read(plainly); s.Left != 1 {
			t.Errorf("a plain read: %d left, and the standby has 1", s.Left)
		}
		for name, s := range map[string]Stock{
			"ForUpdate": read(gormlock.ForUpdate()),
			"Fenced":    read(plainly, gormlock.Fenced()),
		} {
			if s.Left != 0 {
				t.Errorf("%s: %d left, and 0 are at the primary", name, s.Left)
			}
		}
	})
}
