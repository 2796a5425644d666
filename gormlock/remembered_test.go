package gormlock_test

import (
	"testing"
	"time"

	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
)

// TestSealWhenOut_RememberedCostsNothing: an attempt that is answered from memory is over before GORM prepares anything
// for it, whose transaction alone takes more than twice as many allocations.
func TestSealWhenOut_RememberedCostsNothing(t *testing.T) { // not parallel: it counts
	db, err := gorm.Open(sqlite.Open(":memory:"), &gorm.Config{Logger: logger.Discard})
	ok(t, "Open", err)
	pool(t, db).SetMaxOpenConns(1)
	defer func() { _ = pool(t, db).Close() }()
	ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}))
	l := locker(t, testutil.Memory())
	ok(t, "Use", db.Use(gormlock.New(l, gormlock.RememberSeals(time.Hour))))
	put(t, db, 42, 0)
	want(t, "the first", sellers["Transaction"](db, 42, 1), gormlock.ErrInsufficient)
	for name, most := range map[string]float64{"Transaction": 12, "Grouped": 13} {
		want(t, name, sellers[name](db, 42, 1), core.ErrSealed)
		n := testing.AllocsPerRun(100, func() {
			want(t, name, sellers[name](db, 42, 1), gormlock.ErrInsufficient)
		})
		t.Logf("%s: %v allocations", name, n)
		if n > most {
			t.Errorf("%s: %v allocations, want %v at most", name, n, most)
		}
	}
}
