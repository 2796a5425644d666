package gormlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

var ok, want, eventually = check.OK, check.Want, check.Eventually

var long = check.Long

func TestMain(m *testing.M) {
	check.Parallel(5)
	// The clients report faults that tests make.
	logging.Disable()
	_ = mysql.SetLogger(&mysql.NopLogger{})
	// The cache of prepared statements of a gorm.DB has a goroutine that nothing ends.
	check.Main(m, goleak.IgnoreAnyFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"))
}

type Stock struct {
	ID    uint
	SKU   int    `gorm:"uniqueIndex"`
	Name  string `gorm:"size:64"`
	Left  int64
	Items []Item `gorm:"constraint:OnDelete:CASCADE"`
}

type Item struct {
	ID      uint
	StockID uint
	Name    string `gorm:"size:64"`
}

// each runs fn on each database with the tables of Stock and Item in it. MariaDB's statements are
// prepared, and those of the others are not. At full size each database has it both ways.
func each(t *testing.T, fn func(t *testing.T, db *gorm.DB), opts ...gorm.Option) {
	t.Helper()
	if !long {
		eachPrepared(t, func(db string) bool { return db == "mysql" }, fn, opts)
		return
	}
	for _, prepared := range []bool{false, true} {
		t.Run(fmt.Sprintf("prepared=%v", prepared), func(t *testing.T) {
			eachPrepared(t, func(string) bool { return prepared }, fn, opts)
		})
	}
}

// eachPrepared runs fn on each database, with prepared statements on those that prepared chooses.
func eachPrepared(t *testing.T, prepared func(db string) bool, fn func(*testing.T, *gorm.DB), opts []gorm.Option) {
	t.Helper()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		config := &gorm.Config{Logger: logger.Discard, PrepareStmt: prepared(db.Name())}
		db, err := gorm.Open(db.Dialector, append([]gorm.Option{config}, opts...)...)
		ok(t, "Open", err)
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}, &Item{}))
		fn(t, db)
	})
}

// config is a gorm.Option that changes the configuration of each database that is opened with it.
type config func(*gorm.Config)

func (c config) Apply(g *gorm.Config) error   { c(g); return nil }
func (config) AfterInitialize(*gorm.DB) error { return nil }

// guarded runs fn as each does, with the plugin on its own Locker.
func guarded(t *testing.T, fn func(t *testing.T, db *gorm.DB, l *core.Locker), opts ...gorm.Option) {
	t.Helper()
	each(t, func(t *testing.T, db *gorm.DB) {
		l := locker(t, backendtest.Memory())
		ok(t, "Use", db.Use(gormlock.New(l)))
		fn(t, db, l)
	}, opts...)
}

func locker(t testing.TB, b core.Opener, opts ...core.Option) *core.Locker {
	t.Helper()
	l, err := core.New(b, append([]core.Option{core.WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
	ok(t, "core.New", err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func put(t testing.TB, db *gorm.DB, sku int, left int64) {
	t.Helper()
	ok(t, "Create", db.Create(&Stock{SKU: sku, Name: "thing", Left: left}).Error)
}

// endsInLine calls fn with a context that ends while fn waits for a key. On a busy machine the context
// may end before fn waits. Then endsInLine calls fn again, with more time.
func endsInLine(t testing.TB, fn func(ctx context.Context) error) error {
	t.Helper()
	for d := 20 * time.Millisecond; ; d *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		err := fn(ctx)
		cancel()
		if errors.Is(err, core.ErrTaken) || d > 5*time.Second {
			return err
		}
	}
}

// left reads a stock in a session without context or guards.
func left(t testing.TB, db *gorm.DB, sku int) int64 {
	t.Helper()
	var s Stock
	ok(t, "Take", db.Session(&gorm.Session{NewDB: true, Context: context.Background()}).Take(&s, "sku = ?", sku).Error)
	return s.Left
}

func wantLeft(t testing.TB, db *gorm.DB, sku int, n int64) {
	t.Helper()
	if got := left(t, db, sku); got != n {
		t.Fatalf("stock %d: %d left, want %d", sku, got, n)
	}
}

func held(t testing.TB, l *core.Locker, key string) bool {
	t.Helper()
	st, err := l.Inspect(context.Background(), key)
	ok(t, "Inspect", err)
	return st.Status == core.Held
}

// wantIdle fails if a key is locked, or a connection is in use.
func wantIdle(t testing.TB, db *gorm.DB, l *core.Locker, keys ...string) {
	t.Helper()
	for _, k := range keys {
		if held(t, l, k) {
			t.Fatalf("key %q is still locked", k)
		}
	}
	if n := inUse(t, db); n != 0 {
		t.Fatalf("%d connections are in use", n)
	}
}

func inUse(t testing.TB, db *gorm.DB) int {
	t.Helper()
	return pool(t, db).Stats().InUse
}

func pool(t testing.TB, db *gorm.DB) *sql.DB {
	t.Helper()
	p, err := db.DB()
	ok(t, "DB", err)
	return p
}

// take is the statement most tests guard.
func take(db *gorm.DB, sku int) error {
	tx := db.Model(&Stock{}).Where("sku = ?", sku).Update("left", gorm.Expr("? - 1", column("left")))
	if tx.Error == nil && tx.RowsAffected == 0 && !tx.DryRun {
		// MariaDB may report success for an UPDATE that KILL QUERY ended before it changed its row.
		return errors.New("take: no row was changed")
	}
	return tx.Error
}

// hooked is a Backend that runs functions when a key was locked and before it is unlocked.
type hooked struct {
	core.Sealer
	mu      sync.Mutex
	locked  func(key string)
	unlock  func(key string)
	owners  []string
	extends atomic.Int64
	sooner  time.Duration // leases seem to end so much sooner, and are renewed sooner
}

// Open implements core.Opener.
func (h *hooked) Open(core.Environment) (core.Backend, error) { return h, nil }

func (h *hooked) Acquire(ctx context.Context, r core.Request) (core.Grant, error) {
	g, err := h.Sealer.Acquire(ctx, r)
	if err == nil && h.locked != nil {
		h.locked(r.Key)
	}
	if err == nil {
		h.mu.Lock()
		h.owners = append(h.owners, r.Owner)
		h.mu.Unlock()
	}
	g.Deadline = g.Deadline.Add(-h.sooner)
	return g, err
}

func (h *hooked) Extend(ctx context.Context, g core.Grant, ttl time.Duration) (core.Grant, error) {
	h.extends.Add(1)
	g, err := h.Sealer.Extend(ctx, g, ttl)
	g.Deadline = g.Deadline.Add(-h.sooner)
	return g, err
}

func (h *hooked) Release(ctx context.Context, g core.Grant) (core.Waiters, error) {
	if h.unlock != nil {
		h.unlock(g.Key)
	}
	return h.Sealer.Release(ctx, g)
}

// journal is what happened, in order.
type journal struct {
	mu     sync.Mutex
	events []string
}

func (j *journal) note(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = append(j.events, fmt.Sprintf(format, args...))
}

func (j *journal) want(t testing.TB, what string, events ...string) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	if !slices.Equal(j.events, events) {
		t.Fatalf("%s: got %q, want %q", what, j.events, events)
	}
	j.events = nil
}

func (j *journal) backend() core.Opener {
	return &hooked{
		Sealer: backendtest.Memory(),
		locked: func(key string) { j.note("lock %s", key) },
		unlock: func(key string) { j.note("unlock %s", key) },
	}
}
