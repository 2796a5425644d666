package gormlock_test

import (
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/plugin/dbresolver"

	"github.com/onelane/onelane/gormlock"
)

// TestDBResolver_PoolSettings: what dbresolver sets of its pools reaches the pool that the plugin has wrapped.
func TestDBResolver_PoolSettings(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, main *gorm.DB) {
		replica := beside(t, main, "replica", 1)
		ok(t, "Use", main.Use(gormlock.New(nil)))
		resolver := dbresolver.Register(dbresolver.Config{Replicas: []gorm.Dialector{replica.Dialector}}).SetMaxOpenConns(3)
		ok(t, "Use", main.Use(resolver))
		for name, db := range map[string]*gorm.DB{"main": main, "replica": replica} {
			if n := pool(t, db).Stats().MaxOpenConnections; n != 3 {
				t.Errorf("SetMaxOpenConns(3): the %s has a limit of %d", name, n)
			}
		}
		resolver.SetMaxIdleConns(2).SetConnMaxLifetime(time.Hour).SetConnMaxIdleTime(time.Minute).SetMaxOpenConns(5)
		if n := pool(t, main).Stats().MaxOpenConnections; n != 5 {
			t.Errorf("SetMaxOpenConns(5): the limit is %d", n)
		}
	})
}

// TestDBResolver_VersionsFromWriter: Save of a slice writes, and does not look at a replica that lags.
func TestDBResolver_VersionsFromWriter(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, main *gorm.DB) {
		replica := beside(t, main, "replica", 1)
		ok(t, "AutoMigrate", main.AutoMigrate(&Account{}))
		ok(t, "AutoMigrate", replica.AutoMigrate(&Account{}))
		ok(t, "Use", main.Use(gormlock.New(nil)))
		ok(t, "Use", main.Use(dbresolver.Register(dbresolver.Config{Replicas: []gorm.Dialector{replica.Dialector}})))
		a := Account{Name: "a"}
		ok(t, "Create", main.Create(&a).Error)
		a.Name = "b"
		ok(t, "Save", main.Session(&gorm.Session{SkipDefaultTransaction: true}).Save([]*Account{&a}).Error)
		wantVersion(t, "the model", a.Version, 2)
		var now Account
		ok(t, "Take", main.Clauses(dbresolver.Write).Take(&now, a.ID).Error)
		if now.Name != "b" || now.Version != 2 {
			t.Errorf("the row is %+v", now)
		}
	})
}

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
