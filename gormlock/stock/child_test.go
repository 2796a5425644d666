//go:build unix

package stock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/glebarez/sqlite"
	gomysql "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	gormmysql "gorm.io/driver/mysql"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/gormlock/stock"
)

// childEnv has what a child process does: its role, dialect, database and an argument.
const childEnv = "ONELANE_STOCK_CHILD"

func init() { runChild = childMain }

func childMain() bool {
	order := os.Getenv(childEnv)
	if order == "" {
		return false
	}
	part := strings.Split(order, "|")
	db, err := openPlace(part[1], part[2])
	if err == nil {
		err = map[string]func(*gorm.DB, string) error{"seller": childSells, "dying": childDies}[part[0]](db, part[3])
	}
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	return true
}

// placeOf is how another process opens the database of a test.
func placeOf(t *testing.T, db *gorm.DB) (place string) {
	t.Helper()
	switch db.Name() {
	case "sqlite":
		ok(t, "database_list", db.Raw("SELECT file FROM pragma_database_list WHERE name = 'main'").Scan(&place).Error)
	case "mysql":
		ok(t, "DATABASE", db.Raw("SELECT DATABASE()").Scan(&place).Error)
	case "postgres":
		ok(t, "current_database", db.Raw("SELECT current_database()").Scan(&place).Error)
	}
	return place
}

func openPlace(dialect, place string) (*gorm.DB, error) {
	var d gorm.Dialector
	switch dialect {
	case "sqlite":
		pool, err := sql.Open(sqlite.DriverName, "file:"+place+"?_pragma=busy_timeout(20000)&_txlock=immediate&_pragma=journal_mode(WAL)")
		if err != nil {
			return nil, err
		}
		d = &sqlite.Dialector{Conn: pool}
	case "mysql":
		cfg, err := gomysql.ParseDSN(os.Getenv("ONELANE_MYSQL_DSN"))
		if err != nil {
			return nil, err
		}
		cfg.DBName, cfg.ParseTime = place, true
		d = gormmysql.Open(cfg.FormatDSN())
	case "postgres":
		cfg, err := pgx.ParseConfig(postgresDSN())
		if err != nil {
			return nil, err
		}
		cfg.Database = place
		d = postgres.New(postgres.Config{Conn: stdlib.OpenDB(*cfg)})
	}
	return gorm.Open(d, &gorm.Config{Logger: logger.Discard})
}

func startChild(t *testing.T, role string, db *gorm.DB, argument string) (wait func() (string, error)) {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), childEnv+"="+strings.Join([]string{role, db.Name(), placeOf(t, db), argument}, "|"))
	var out strings.Builder
	c.Stdout, c.Stderr = &out, &out
	ok(t, "Start", c.Start())
	t.Cleanup(func() { _ = c.Process.Kill() })
	return func() (string, error) { err := c.Wait(); return strings.TrimSpace(out.String()), err }
}

// childSells sells by 16 goroutines until nothing is left, and prints how many it sold.
func childSells(db *gorm.DB, base string) error {
	first, err := strconv.ParseInt(base, 10, 64)
	if err != nil {
		return err
	}
	s, err := stock.NewSale[Stock, Order](db, "remaining", unique, stock.Within(time.Minute))
	if err != nil {
		return err
	}
	var sold, next atomic.Int64
	var failed error
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for {
				_, err := s.Sell(context.Background(), 42, 1, &Order{SKU: 42, Buyer: first + next.Add(1)})
				switch {
				case err == nil:
					sold.Add(1)
					continue
				case errors.Is(err, stock.ErrDuplicate):
					continue
				case !errors.Is(err, stock.ErrInsufficient):
					mu.Lock()
					failed = err
					mu.Unlock()
				}
				return
			}
		})
	}
	wg.Wait()
	fmt.Println(sold.Load())
	return failed
}

// childDies sells a batch and is killed in one phase of its transaction.
func childDies(db *gorm.DB, phase string) error {
	die := func() error {
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
		select {}
	}
	f := &faulty{}
	if phase == "COMMIT" {
		f.commit = func(tx gorm.TxCommitter) error {
			if err := tx.Commit(); err != nil {
				return err
			}
			return die()
		}
	} else {
		f.statement = func(query string) error {
			if strings.HasPrefix(query, phase) {
				return die()
			}
			return nil
		}
		if phase == "before COMMIT" {
			f.commit = func(gorm.TxCommitter) error { return die() }
		}
	}
	s, err := stock.NewSale[Stock, Order](through(db, f), "remaining", unique)
	if err != nil {
		return err
	}
	release := stock.Hold(s)
	var wg sync.WaitGroup
	for i := range int64(8) {
		wg.Go(func() { _, _ = s.Sell(context.Background(), 42, 1, &Order{SKU: 42, Buyer: i}) })
	}
	for stock.Queued(s) < 8 {
	}
	release()
	wg.Wait()
	return errors.New("it was not killed")
}

// TestSale_Killed: the process is killed in each phase. What was taken was paid for, and the row is
// free.
func TestSale_Killed(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		for phase, stored := range map[string]int64{"BEGIN": 0, "UPDATE": 0, "INSERT": 0, "before COMMIT": 0, "COMMIT": 8} {
			fresh(t, db, 1000, &Order{})
			out, err := startChild(t, "dying", db, phase)()
			if err == nil || out != "" {
				t.Fatalf("%s: the child ended with %q, %v", phase, out, err)
			}
			_, err = newSale[Order](t, db, unique).Sell(t.Context(), 42, 1, &Order{SKU: 42, Buyer: 99})
			ok(t, phase, err)
			wantBooks[Order](t, db, 1000, stored+1)
		}
	})
}

// TestSale_Processes: four processes sell one row until nothing is left.
func TestSale_Processes(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		const stocked = 600
		fresh(t, db, stocked, &Order{})
		var waits []func() (string, error)
		for i := range 4 { // two pairs sell to the same buyers
			waits = append(waits, startChild(t, "seller", db, strconv.Itoa(i/2*1_000_000)))
		}
		var sold int64
		for _, wait := range waits {
			out, err := wait()
			ok(t, out, err)
			n, err := strconv.ParseInt(out, 10, 64)
			ok(t, "sold", err)
			sold += n
		}
		if sold != stocked {
			t.Errorf("%d were sold", sold)
		}
		wantBooks[Order](t, db, stocked, sold)
	})
}

// TestSale_ConnectionsKilled: the server ends all connections while calls run, as in a restart.
// Calls fail or succeed, and the books are exact.
func TestSale_ConnectionsKilled(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() == "sqlite" {
			return
		}
		fresh(t, db, 1<<40, &Order{})
		other, err := openPlace(db.Name(), placeOf(t, db))
		ok(t, "open", err)
		pool, _ := other.DB()
		defer pool.Close()
		s := newSale[Order](t, other, unique)
		var stop atomic.Bool
		var sold, unknown, next atomic.Int64
		var wg sync.WaitGroup
		for range 32 {
			wg.Go(func() {
				for !stop.Load() {
					_, err := s.Sell(context.Background(), 42, 1, &Order{SKU: 42, Buyer: next.Add(1)})
					switch {
					case err == nil:
						sold.Add(1)
					case errors.Is(err, stock.ErrCommitUnknown):
						unknown.Add(1)
					}
				}
			})
		}
		for range 5 {
			before := sold.Load()
			eventually(t, "it sells", func() bool { return sold.Load() > before+32 })
			killOthers(t, db)
		}
		stop.Store(true)
		wg.Wait()
		taken, stored := 1<<40-left(t, db), count[Order](t, db)
		if taken != stored || stored < sold.Load() || stored > sold.Load()+unknown.Load() {
			t.Errorf("sold %d, unknown %d, taken %d, stored %d", sold.Load(), unknown.Load(), taken, stored)
		}
	})
}

// killOthers ends the other connections to the database of db.
func killOthers(t *testing.T, db *gorm.DB) {
	t.Helper()
	if db.Name() == "postgres" {
		ok(t, "terminate", db.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()").Error)
		return
	}
	var ids []int64
	ok(t, "processlist", db.Raw("SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()").Scan(&ids).Error)
	for _, id := range ids {
		_ = db.Exec(fmt.Sprintf("KILL %d", id)).Error // it may have ended
	}
}
