package gormlock_test

import (
	"testing"

	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/gormlock"
)

// BenchmarkUnguarded is what GORM itself takes to make a statement without a guard, which is not sent, with the plugin and
// without it: what the plugin adds does not depend on the database.
func BenchmarkUnguarded(b *testing.B) {
	for _, with := range []bool{false, true} {
		db, err := gorm.Open(sqlite.Open(":memory:"), &gorm.Config{Logger: logger.Discard, DryRun: true, SkipDefaultTransaction: true})
		ok(b, "Open", err)
		if with {
			ok(b, "Use", db.Use(gormlock.New(nil)))
		}
		name := map[bool]string{false: "plain", true: "plugin"}[with]
		b.Run("select/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				ok(b, "Find", db.Find(&[]Stock{}, "sku = ?", 42).Error)
			}
		})
		b.Run("update/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				ok(b, "Update", db.Model(&Stock{}).Where("sku = ?", 42).Update("name", "x").Error)
			}
		})
		_ = pool(b, db).Close()
	}
}
