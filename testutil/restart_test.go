package testutil_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/driver/mysql"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/gormlock/stock"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil/internal/server"
)

type restartStock struct {
	SKU       int64 `gorm:"primaryKey;autoIncrement:false"`
	Remaining int64
}

type restartOrder struct {
	ID    int64 `gorm:"primaryKey"`
	SKU   int64 `gorm:"uniqueIndex:once"`
	Buyer int64 `gorm:"uniqueIndex:once"`
}

// TestRestart_Sale: the server crashes and comes back while a sale runs. The books are exact, and
// only calls whose COMMIT had no answer do not know whether they bought.
func TestRestart_Sale(t *testing.T) {
	t.Parallel()
	for kind, env := range map[server.Kind]string{server.Postgres: server.EnvPostgres, server.MySQL: server.EnvMySQL} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			if os.Getenv(env) == "" {
				t.Skipf("%s is not set: this run goes without such a server", env)
			}
			args := []string{"--innodb-flush-log-at-trx-commit=2"} // written at each COMMIT
			if kind == server.Postgres {
				args = nil
			}
			node, err := server.StartWith(t.Context(), kind, nil, args...)
			check.OK(t, "StartWith", err)
			t.Cleanup(node.Stop)
			restartWhileSelling(t, node, kind)
		})
	}
}

func restartWhileSelling(t *testing.T, node *server.Server, kind server.Kind) {
	const stocked = 1 << 40
	dialector := postgres.Open(node.DSN)
	if kind == server.MySQL {
		dialector = mysql.Open(node.DSN)
	}
	db, err := gorm.Open(dialector, &gorm.Config{Logger: logger.Discard})
	check.OK(t, "Open", err)
	pool, err := db.DB()
	check.OK(t, "DB", err)
	defer pool.Close()
	check.OK(t, "AutoMigrate", errors.Join(db.AutoMigrate(&restartStock{}, &restartOrder{}), db.Create(&restartStock{42, stocked}).Error))
	s, err := stock.NewSale[restartStock, restartOrder](db, "remaining", stock.Unique("sku", "buyer"), stock.Within(time.Minute))
	check.OK(t, "NewSale", err)
	var stop atomic.Bool
	var sold, unknown, failed, next atomic.Int64
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for !stop.Load() {
				o := &restartOrder{SKU: 42, Buyer: next.Add(1)}
				switch _, err := s.Sell(context.Background(), 42, 1, o); {
				case err == nil:
					sold.Add(1)
				case errors.Is(err, stock.ErrCommitUnknown):
					unknown.Add(1)
				default:
					if failed.Add(1); o.ID != 0 || strings.Contains(err.Error(), "panic") {
						t.Error(err)
					}
					time.Sleep(time.Millisecond) // it is down
				}
			}
		})
	}
	sells := func() {
		before := sold.Load()
		check.Eventually(t, "it sells", func() bool { return sold.Load() > before+100 })
	}
	for range 2 {
		sells()
		check.OK(t, "Restart", node.Restart(t.Context()))
	}
	sells()
	stop.Store(true)
	wg.Wait()
	var row restartStock
	var stored int64
	check.OK(t, "the books", errors.Join(db.Take(&row, 42).Error, db.Model(&restartOrder{}).Count(&stored).Error))
	if taken := stocked - row.Remaining; taken != stored || stored < sold.Load() || stored > sold.Load()+unknown.Load() {
		t.Errorf("sold %d, unknown %d, failed %d, taken %d, stored %d", sold.Load(), unknown.Load(), failed.Load(), taken, stored)
	}
}
