package gormlock_test

import (
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/gormlock"
)

// TestUse_SharedConfig: two databases have one gorm.Config value. GORM keeps them apart, so
// the plugin must not send statements of the one to the other.
func TestUse_SharedConfig(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, main *gorm.DB) {
		other := beside(t, main, "other", 10)
		ok(t, "Create", main.Create(&Stock{SKU: 42, Name: "main", Left: 10}).Error)
		config := &gorm.Config{Logger: logger.Discard}
		first, err := gorm.Open(main.Dialector, config)
		ok(t, "Open", err)
		second, err := gorm.Open(other.Dialector, config)
		ok(t, "Open", err)
		reads := func(db *gorm.DB) string {
			var s Stock
			ok(t, "Take", db.Take(&s, "sku = 42").Error)
			return s.Name
		}
		if a, b := reads(first), reads(second); a != "main" || b != "other" {
			t.Fatalf("without the plugin they read %q and %q", a, b)
		}
		refused := first.Use(gormlock.New(nil))
		if name := reads(first); name != "main" {
			t.Errorf("with the plugin, the first gorm.DB reads %q", name)
		}
		if refused == nil {
			t.Error("Use: want an error, as the config is the other database's too")
		}
	})
}
