package optimistic_test

import (
	"database/sql"
	"errors"
	"testing"

	"go.uber.org/goleak"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/gormlock/optimistic"
	"github.com/onelane/onelane/gormlock/stock"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

var ok, want = check.OK, check.Want

func TestMain(m *testing.M) {
	check.Parallel(5)
	// The cache of prepared statements of a gorm.DB has a goroutine that nothing ends.
	check.Main(m, goleak.IgnoreAnyFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"))
}

var errNo = errors.New("no")

// Account has a version, and is deleted softly, by a field that stands before it.
type Account struct {
	gorm.Model
	Name    string `gorm:"size:64"`
	Balance int64
	Version optimistic.Version
	Notes   []Note
}

type Note struct {
	ID        uint
	AccountID uint
	Version   *optimistic.Version
}

// Seat has two keys, and its rows are gone when they are deleted.
type Seat struct {
	Row, Number int `gorm:"primaryKey;autoIncrement:false"`
	Taken       bool
	Edition     optimistic.Version `gorm:"column:edition"`
}

// Hooked fails or panics after it was created or updated, if told to.
type Hooked struct {
	ID      uint
	Name    string `gorm:"size:64;uniqueIndex"`
	Fail    bool   `gorm:"-"`
	Panic   bool   `gorm:"-"`
	Version optimistic.Version
}

func (h *Hooked) AfterSave(*gorm.DB) error {
	if h.Panic {
		panic(errNo)
	}
	if h.Fail {
		return errNo
	}
	return nil
}

// each runs fn on each database, without the plugin. MariaDB's statements are prepared.
func each(t *testing.T, fn func(t *testing.T, db *gorm.DB)) {
	t.Helper()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		db, err := gorm.Open(db.Dialector, &gorm.Config{Logger: logger.Discard, PrepareStmt: db.Name() == "mysql"})
		ok(t, "Open", err)
		ok(t, "AutoMigrate", db.AutoMigrate(&Account{}, &Note{}, &Seat{}, &Hooked{}))
		fn(t, db)
	})
}

// versionedDB runs fn on each database, with the plugin.
func versionedDB(t *testing.T, fn func(t *testing.T, db *gorm.DB)) {
	t.Helper()
	each(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Use", db.Use(gormlock.New(check.Locker(t, backendtest.Memory()))))
		fn(t, db)
	})
}

// twice creates an account and reads it twice.
func twice(t testing.TB, db *gorm.DB) (mine, theirs Account) {
	t.Helper()
	a := Account{Name: "a", Balance: 10}
	ok(t, "Create", db.Create(&a).Error)
	if a.Version != 1 {
		t.Fatalf("a new row has version %d", a.Version)
	}
	ok(t, "Take", errors.Join(db.Take(&mine, a.ID).Error, db.Take(&theirs, a.ID).Error))
	return mine, theirs
}

// wantRow fails unless the row of an account has this balance and version.
func wantRow(t *testing.T, what string, db *gorm.DB, id uint, balance int64, version optimistic.Version) {
	t.Helper()
	var now Account
	ok(t, "Take", db.Unscoped().Take(&now, id).Error)
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

// decrement is for tests that do not look at what is left.
func decrement(db *gorm.DB, column string, n int64) error {
	_, err := stock.Decrement(db, column, n)
	return err
}

func pool(t testing.TB, db *gorm.DB) *sql.DB {
	t.Helper()
	p, err := db.DB()
	ok(t, "DB", err)
	return p
}
