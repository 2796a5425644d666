package gormlock_test

import (
	"errors"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock/optimistic"
)

var errNo = errors.New("no")

// Account has a version.
type Account struct {
	ID      uint
	Name    string `gorm:"size:64"`
	Balance int64
	Version optimistic.Version
}

func versionedDB(t *testing.T, fn func(t *testing.T, db *gorm.DB)) {
	t.Helper()
	guarded(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		ok(t, "AutoMigrate", db.AutoMigrate(&Account{}))
		fn(t, db)
	})
}

// twice creates an account and reads it twice.
func twice(t testing.TB, db *gorm.DB) (mine, theirs Account) {
	t.Helper()
	a := Account{Name: "a", Balance: 10}
	ok(t, "Create", db.Create(&a).Error)
	ok(t, "Take", errors.Join(db.Take(&mine, a.ID).Error, db.Take(&theirs, a.ID).Error))
	return mine, theirs
}

// wantRow fails unless the row of an account has this balance and version.
func wantRow(t *testing.T, what string, db *gorm.DB, id uint, balance int64, version optimistic.Version) {
	t.Helper()
	var now Account
	ok(t, "Take", db.Take(&now, id).Error)
	if now.Balance != balance || now.Version != version {
		t.Fatalf("%s: balance %d in version %d, want %d in %d", what, now.Balance, now.Version, balance, version)
	}
}

func wantVersion(t *testing.T, what string, got, version optimistic.Version) {
	t.Helper()
	if got != version {
		t.Fatalf("%s: the model has version %d, want %d", what, got, version)
	}
}
