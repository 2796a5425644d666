package stock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"go.uber.org/goleak"
	gormmysql "gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/gormlock/stock"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
)

var ok, want, eventually = check.OK, check.Want, check.Eventually

var long = check.Long

// runChild does what a child process is for, and reports whether this is one.
var runChild = func() bool { return false }

func TestMain(m *testing.M) {
	if runChild() {
		return
	}
	check.Parallel(5)
	slog.SetDefault(slog.New(slog.DiscardHandler))
	_ = mysql.SetLogger(&mysql.NopLogger{})
	// The cache of prepared statements of a gorm.DB has a goroutine that nothing ends.
	check.Main(m, goleak.IgnoreAnyFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"))
}

// Stock is what is sold.
type Stock struct {
	SKU       int64 `gorm:"primaryKey;autoIncrement:false"`
	Remaining int64
	State     string `gorm:"size:16;default:open"`
}

// Order is stored for each sale. The database refuses a note of "bad".
type Order struct {
	ID    int64  `gorm:"primaryKey"`
	SKU   int64  `gorm:"uniqueIndex:one"`
	Buyer int64  `gorm:"uniqueIndex:one"`
	N     int64  `gorm:"check:n < 1000"`
	Note  string `gorm:"size:64"`
}

// Plain has no unique index.
type Plain struct {
	ID    int64 `gorm:"primaryKey"`
	SKU   int64
	Buyer int64
}

// each runs fn on each database, and on MariaDB once more as GORM talks to MySQL, which has no
// RETURNING. GORM prepares the statements of MariaDB.
func each(t *testing.T, fn func(t *testing.T, db *gorm.DB)) {
	t.Helper()
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() != "mysql" {
			fn(t, db)
			return
		}
		pool, err := db.DB()
		ok(t, "DB", err)
		t.Run("prepared", func(t *testing.T) { fn(t, db.Session(&gorm.Session{PrepareStmt: true})) })
		t.Run("MySQL", func(t *testing.T) {
			db, err := gorm.Open(gormmysql.New(gormmysql.Config{Conn: pool, DisableWithReturning: true}),
				&gorm.Config{Logger: logger.Discard, TranslateError: true})
			ok(t, "Open", err)
			fn(t, db)
		})
	})
}

// fresh makes the tables of Stock and of the models anew, with one row of stock.
func fresh(t testing.TB, db *gorm.DB, remaining int64, models ...any) {
	t.Helper()
	models = append([]any{&Stock{}}, models...)
	for i := len(models) - 1; i >= 0; i-- {
		ok(t, "DropTable", db.Migrator().DropTable(models[i]))
	}
	for _, m := range models {
		ok(t, "AutoMigrate", db.AutoMigrate(m))
	}
	ok(t, "Create", db.Create(&Stock{SKU: 42, Remaining: remaining}).Error)
}

// newSale makes a sale whose batches have all the time that a busy machine needs, unless opts say
// otherwise.
func newSale[O any](t testing.TB, db *gorm.DB, opts ...stock.Option) *stock.Sale[Stock, O] {
	t.Helper()
	s, err := stock.NewSale[Stock, O](db, "remaining", append([]stock.Option{stock.Within(time.Minute)}, opts...)...)
	ok(t, "NewSale", err)
	return s
}

var unique = stock.Unique("sku", "buyer")

func left(t testing.TB, db *gorm.DB) int64 {
	t.Helper()
	var s Stock
	ok(t, "Take", db.Take(&s, 42).Error)
	return s.Remaining
}

func count[O any](t testing.TB, db *gorm.DB) (n int64) {
	t.Helper()
	ok(t, "Count", db.Model(new(O)).Count(&n).Error)
	return n
}

// wantBooks checks that what was taken was paid for, one unit for an order.
func wantBooks[O any](t testing.TB, db *gorm.DB, before, sold int64) {
	t.Helper()
	if taken, orders := before-left(t, db), count[O](t, db); taken != sold || orders != sold {
		t.Errorf("sold %d: %d were taken and %d orders are stored", sold, taken, orders)
	}
}

// told is the result of one call.
type told[O any] struct {
	order *O
	left  int64
	err   error
	panic any
}

// together sells orders in one batch: it locks the row until all of them are in line. The first one
// is a lone call for another order that waits for the row too.
func together[O any](t testing.TB, db *gorm.DB, s *stock.Sale[Stock, O], n func(i int) int64, orders ...*O) []told[O] {
	t.Helper()
	all := make([]told[O], len(orders))
	var wg sync.WaitGroup
	release := stock.Hold(s)
	for i, o := range orders {
		wg.Go(func() {
			all[i].order = o
			defer func() {
				if v := recover(); v != nil {
					all[i].panic = v
				}
			}()
			all[i].left, all[i].err = s.Sell(context.Background(), 42, n(i), o)
		})
		eventually(t, "the call is in line", func() bool { return stock.Queued(s) == i+1 })
	}
	release()
	wg.Wait()
	return all
}

func one(int) int64 { return 1 }

func (x told[O]) String() string {
	return fmt.Sprintf("%+v: left %d, error %v, panic %v", reflect.ValueOf(x.order).Elem().Interface(), x.left, x.err, x.panic)
}

func postgresDSN() string { return os.Getenv("ONELANE_POSTGRES_DSN") }

// isUniqueError reports whether an error is a database's about a unique index.
func isUniqueError(err error) bool {
	return errors.Is(err, gorm.ErrDuplicatedKey) || err != nil && (strings.Contains(err.Error(), "23505") || strings.Contains(err.Error(), "1062") || strings.Contains(err.Error(), "UNIQUE"))
}
