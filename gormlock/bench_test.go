package gormlock_test

import (
	"os"
	"runtime"
	"testing"
	"time"

	"gorm.io/driver/mysql"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
)

type BenchStock struct {
	SKU  int `gorm:"primaryKey;autoIncrement:false"`
	Left int64
}

type BenchOrder struct {
	ID  uint
	SKU int
}

// benchDatabases runs fn on MariaDB and PostgreSQL, where testutil/servers gives them.
func benchDatabases(b *testing.B, fn func(b *testing.B, open func(b *testing.B) *gorm.DB)) {
	for name, dialector := range map[string]func(dsn string) gorm.Dialector{
		"mysql":    mysql.Open,
		"postgres": postgres.Open,
	} {
		dsn := os.Getenv(map[string]string{"mysql": "ONELANE_MYSQL_DSN", "postgres": "ONELANE_POSTGRES_DSN"}[name])
		if dsn == "" {
			b.Logf("%s: there is no server: run it under testutil/servers", name)
			continue
		}
		b.Run(name, func(b *testing.B) {
			fn(b, func(b *testing.B) *gorm.DB {
				db, err := gorm.Open(dialector(dsn), &gorm.Config{Logger: logger.Discard})
				ok(b, "Open", err)
				conns := pool(b, db)
				b.Cleanup(func() { _ = conns.Close() })
				conns.SetMaxOpenConns(256)
				conns.SetMaxIdleConns(256)
				ok(b, "Migrate", db.Migrator().DropTable(&BenchStock{}, &BenchOrder{}))
				ok(b, "Migrate", db.AutoMigrate(&BenchStock{}, &BenchOrder{}))
				ok(b, "Create", db.Create(&BenchStock{SKU: 42, Left: 1 << 40}).Error)
				return db
			})
		})
	}
}

// BenchmarkHotRow sells from one row, with an order, to 256 buyers at once.
func BenchmarkHotRow(b *testing.B) {
	benchDatabases(b, func(b *testing.B, open func(b *testing.B) *gorm.DB) {
		sell := func(tx *gorm.DB) error {
			var s BenchStock
			if err := tx.Take(&s, 42).Error; err != nil {
				return err
			}
			if err := tx.Model(&s).Update("left", s.Left-1).Error; err != nil {
				return err
			}
			return tx.Create(&BenchOrder{SKU: 42}).Error
		}
		decrement := func(tx *gorm.DB) error {
			if _, err := gormlock.Decrement(tx.Model(&BenchStock{SKU: 42}), "left", 1); err != nil {
				return err
			}
			return tx.Create(&BenchOrder{SKU: 42}).Error
		}
		wait := gormlock.WithWait(time.Minute)
		for _, way := range []struct {
			name string
			buy  func(db *gorm.DB) error
		}{
			{"ForUpdate", func(db *gorm.DB) error {
				return db.Transaction(func(tx *gorm.DB) error {
					var s BenchStock
					if err := tx.Clauses(clause.Locking{Strength: "UPDATE"}).Take(&s, 42).Error; err != nil {
						return err
					}
					if err := tx.Model(&s).Update("left", s.Left-1).Error; err != nil {
						return err
					}
					return tx.Create(&BenchOrder{SKU: 42}).Error
				})
			}},
			{"Conditional", func(db *gorm.DB) error { return db.Transaction(decrement) }},
			{"Guard", func(db *gorm.DB) error {
				return db.Scopes(gormlock.Guard("stock:42", wait)).Transaction(sell)
			}},
			{"Transaction", func(db *gorm.DB) error { return gormlock.Transaction(db, "stock:42", sell, wait) }},
			{"Grouped", func(db *gorm.DB) error {
				return gormlock.Transaction(db, "stock:42", sell, wait, gormlock.Grouped(32))
			}},
			{"GroupedDecrement", func(db *gorm.DB) error {
				return gormlock.Transaction(db, "stock:42", decrement, wait, gormlock.Grouped(32))
			}},
		} {
			b.Run(way.name, func(b *testing.B) {
				db := open(b)
				redis := redisbackend.New(testutil.Redis(b).Client())
				redis.NodeTimeout = 5 * time.Second
				l, err := core.New(redis)
				ok(b, "New", err)
				defer l.Close()
				ok(b, "Use", db.Use(gormlock.New(l)))
				b.SetParallelism(256 / runtime.GOMAXPROCS(0))
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						ok(b, "buy", way.buy(db))
					}
				})
				b.StopTimer()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "sold/s")
				var s BenchStock
				ok(b, "Take", db.Take(&s, 42).Error)
				var orders int64
				ok(b, "Count", db.Model(&BenchOrder{}).Count(&orders).Error)
				if sold := 1<<40 - s.Left; sold != orders {
					b.Fatalf("%d sold, %d orders", sold, orders)
				}
			})
		}
	})
}
