package gormlock_test

import (
	"fmt"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
)

// TestTenants_SearchPath: a schema for each tenant, chosen by the first statement of a transaction.
// Keys name the tenant, and the path ends with the schema of gormlock's own tables.
func TestTenants_SearchPath(t *testing.T) {
	t.Parallel()
	onceDB(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		if db.Name() != "postgres" {
			return
		}
		for _, tenant := range []string{"a", "b"} {
			ok(t, "CREATE", db.Exec("CREATE SCHEMA tenant_"+tenant).Error)
			ok(t, "CREATE", db.Exec("CREATE TABLE tenant_"+tenant+".stocks (LIKE public.stocks INCLUDING ALL)").Error)
			ok(t, "INSERT", db.Table("tenant_"+tenant+".stocks").Create(&Stock{SKU: 42, Left: 5}).Error)
		}
		enter := func(tx *gorm.DB, path string) error { return tx.Exec("SET LOCAL search_path TO " + path).Error }
		left := func(tenant string) (n int64) {
			ok(t, "left", db.Table("tenant_"+tenant+".stocks").Select(`"left"`).Where("sku = 42").Scan(&n).Error)
			return n
		}
		sell := func(tenant, key, path string, opts ...gormlock.TransactionOption) error {
			return gormlock.Transaction(db, key, func(tx *gorm.DB) error {
				if err := enter(tx, path); err != nil {
					return err
				}
				return take(tx, 42)
			}, opts...)
		}
		ok(t, "a", sell("a", core.Join("a", "stock", "42"), "tenant_a"))
		ok(t, "a, fenced", sell("a", core.Join("a", "stock", "42"), "tenant_a", gormlock.Fenced()))
		if a, b := left("a"), left("b"); a != 3 || b != 5 {
			t.Errorf("%d and %d left, want 3 and 5", a, b)
		}
		wantLeft(t, db, 42, 10) // the path went with its transaction

		once := func(tenant, key, path string) (string, error) {
			return gormlock.Once(t.Context(), db, key, func(tx *gorm.DB) (string, error) {
				if err := enter(tx, path); err != nil {
					return "", err
				}
				return "paid by " + tenant, take(tx, 42)
			})
		}
		for _, tenant := range []string{"a", "b", "a"} {
			got, err := once(tenant, core.Join(tenant, "pay", "7"), fmt.Sprintf("tenant_%s, public", tenant))
			if err != nil || got != "paid by "+tenant {
				t.Errorf("Once of %s: %q, %v", tenant, got, err)
			}
		}
		// The keys of all tenants are in one table.
		got, err := once("b", core.Join("a", "pay", "7"), "tenant_b, public")
		if err != nil || got != "paid by a" {
			t.Errorf("a key without its tenant: %q, %v", got, err)
		}
		// Once stores its result at the end, when the path is that of the tenant.
		if _, err = once("a", core.Join("a", "pay", "8"), "tenant_a"); err == nil {
			t.Error("Once stored its result where its table is not")
		}
		ok(t, "the table", says(err, "onelane_once", nil))
		if a, b := left("a"), left("b"); a != 2 || b != 4 {
			t.Errorf("%d and %d left, want 2 and 4", a, b)
		}
	})
}
