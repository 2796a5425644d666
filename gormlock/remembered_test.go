package gormlock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil/backendtest"
)

// TestSealWhenOut_RememberedCostsNothing: an attempt that is answered from memory is over before
// GORM prepares anything for it. GORM's transaction alone takes more than twice as many
// allocations.
func TestSealWhenOut_RememberedCostsNothing(t *testing.T) { // not parallel: it counts
	db, err := gorm.Open(sqlite.Open(":memory:"), &gorm.Config{Logger: logger.Discard})
	ok(t, "Open", err)
	pool(t, db).SetMaxOpenConns(1)
	defer func() { _ = pool(t, db).Close() }()
	ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}))
	l := locker(t, backendtest.Memory())
	ok(t, "Use", db.Use(gormlock.New(l, gormlock.RememberSeals(time.Hour))))
	put(t, db, 42, 0)
	sellsOut(t, "the first", l, func() error { return sellers["Transaction"](db, 42, 1) })
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

// The memory does not grow for ever: the oldest seals are asked for once more.
func TestRememberSeals_Bounded(t *testing.T) {
	t.Parallel()
	db, err := gorm.Open(sqlite.Open(":memory:"), &gorm.Config{Logger: logger.Discard})
	ok(t, "Open", err)
	defer func() { _ = pool(t, db).Close() }()
	b := &asked{Sealer: backendtest.Memory()}
	l := locker(t, b)
	ok(t, "Use", db.Use(gormlock.New(l, gormlock.RememberSeals(time.Hour))))
	asks := func(key string) bool {
		t.Helper()
		before := b.acquires.Load()
		want(t, key, gormlock.Transaction(db, key, func(*gorm.DB) error { return nil }), core.ErrSealed)
		return b.acquires.Load() > before
	}
	for _, c := range []struct {
		name       string
		keys, size int
	}{{"keys", 1100, 0}, {"bytes", 20, 1 << 20}} {
		key := func(i int) string { return fmt.Sprint(c.name, i) }
		value := make([]byte, c.size)
		for i := range c.keys {
			k, err := l.Acquire(t.Context(), key(i))
			ok(t, "Acquire", err)
			ok(t, "Seal", k.Seal(t.Context(), value, time.Hour))
			asks(key(i))
		}
		if !asks(key(0)) {
			t.Errorf("%s: the first is remembered after %d others", c.name, c.keys)
		}
		if asks(key(c.keys - 1)) {
			t.Errorf("%s: the last is not remembered", c.name)
		}
	}
}
