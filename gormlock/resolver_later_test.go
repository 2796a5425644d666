package gormlock_test

import (
	"testing"

	"gorm.io/gorm"
	"gorm.io/plugin/dbresolver"

	"github.com/onelane/onelane/gormlock"
)

// TestDBResolver_RegisteredLater: a resolver that is registered after db.Use works, as without the
// plugin. dbresolver ignores an error there.
func TestDBResolver_RegisteredLater(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, main *gorm.DB) {
		source := beside(t, main, "source", 10)
		ok(t, "Use", main.Use(gormlock.New(nil)))
		resolver := dbresolver.Register(dbresolver.Config{})
		ok(t, "Use", main.Use(resolver))
		resolver.Register(dbresolver.Config{Sources: []gorm.Dialector{source.Dialector}}, &Stock{})
		ok(t, "take", take(main, 42))
		wantLeft(t, source, 42, 9)
	})
}
