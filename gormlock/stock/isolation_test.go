package stock_test

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"
	gormmysql "gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/gormlock/stock"
	"github.com/onelane/onelane/testutil"
)

// TestSale_Serializable: a server whose default is SERIALIZABLE.
func TestSale_Serializable(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() == "sqlite" {
			return
		}
		pool, _ := db.DB()
		pool.SetMaxIdleConns(0) // new connections get the setting
		query := "SET GLOBAL transaction_isolation = 'SERIALIZABLE'"
		if db.Name() == "postgres" {
			var name string
			ok(t, "name", db.Raw("SELECT current_database()").Scan(&name).Error)
			query = fmt.Sprintf("ALTER DATABASE %q SET default_transaction_isolation = 'serializable'", name)
			ok(t, "Exec", db.Exec(query).Error)
		}
		fresh(t, db, 1<<40, &Order{})
		var sales []*stock.Sale[Stock, Order]
		var pools []*isolated
		for range 4 {
			db, pool := serializable(db)
			sales, pools = append(sales, newSale[Order](t, db, unique)), append(pools, pool)
		}
		sold, repeats := concurrently(t, sales, 8, 10)
		if sold == 0 || repeats == 0 {
			t.Errorf("sold %d, repeats %d", sold, repeats)
		}
		wantBooks[Order](t, db, 1<<40, sold)
		asked := 0
		for i, s := range sales {
			_, err := s.Sell(t.Context(), 42, 1, &Order{SKU: 42, Buyer: -1 - int64(i)})
			ok(t, "Sell", err)
			if o := pools[i].asked.Load(); o != nil && o.Isolation == sql.LevelReadCommitted {
				asked++
			}
		}
		if isolates(t, db) != (asked > 0) {
			t.Errorf("%d of 4 sales ask for READ COMMITTED after their conflicts", asked)
		}
	})
}

// isolates reports whether a SERIALIZABLE transaction fails if others changed its row. On MariaDB a
// setting decides, which is on since 11.6.2.
func isolates(t *testing.T, db *gorm.DB) bool {
	if db.Name() != "mysql" {
		return db.Name() == "postgres"
	}
	var settings []struct{ Value string }
	ok(t, "SHOW", db.Raw("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'").Scan(&settings).Error)
	return len(settings) > 0 && settings[0].Value == "ON"
}

// TestSale_AsksNoIsolation: asking costs the server a tenth of a sale.
func TestSale_AsksNoIsolation(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		fresh(t, db, 1<<40, &Order{})
		db, pool := isolating(db, nil)
		s := newSale[Order](t, db, unique)
		sold, _ := concurrently(t, []*stock.Sale[Stock, Order]{s, s}, 8, 10)
		wantBooks[Order](t, db, 1<<40, sold)
		if o := pool.asked.Load(); o != nil {
			t.Errorf("the last transaction asked for %v", o.Isolation)
		}
	})
}

// serializable begins MySQL's transactions as SERIALIZABLE, whatever the server's default is.
func serializable(db *gorm.DB) (*gorm.DB, *isolated) {
	if db.Name() == "mysql" {
		return isolating(db, &sql.TxOptions{Isolation: sql.LevelSerializable})
	}
	return isolating(db, nil)
}

// isolating begins transactions with these options unless the caller has others.
func isolating(db *gorm.DB, begins *sql.TxOptions) (*gorm.DB, *isolated) {
	db = db.Session(&gorm.Session{NewDB: true, Context: context.Background()})
	inner := db.ConnPool
	if prepared, ok := inner.(*gorm.PreparedStmtDB); ok {
		inner = prepared.ConnPool
	}
	p := &isolated{ConnPool: inner, begins: begins}
	db.ConnPool, db.Statement.ConnPool = p, p
	return db, p
}

type isolated struct {
	gorm.ConnPool
	begins *sql.TxOptions
	asked  atomic.Pointer[sql.TxOptions] // last
}

func (p *isolated) BeginTx(ctx context.Context, opts *sql.TxOptions) (gorm.ConnPool, error) {
	p.asked.Store(opts)
	return p.ConnPool.(gorm.TxBeginner).BeginTx(ctx, cmp.Or(opts, p.begins))
}

// Tally counts orders in a row that another process writes, too.
type Tally struct {
	ID int64 `gorm:"primaryKey;autoIncrement:false"`
	N  int64
}

// Tallied is an order that counts itself, and hides the error if it cannot.
type Tallied struct {
	ID    int64 `gorm:"primaryKey"`
	SKU   int64
	other *gorm.DB // another process
}

func (o *Tallied) AfterCreate(tx *gorm.DB) error {
	const count = "UPDATE tallies SET n = n + 1"
	err := o.other.Exec(count).Error
	_ = tx.Transaction(func(tx *gorm.DB) error { return tx.Exec(count).Error })
	return err
}

// TestSale_HookHidesConflict: above READ COMMITTED, PostgreSQL refuses to change a row that others
// changed since the transaction began. A hook may hide that.
func TestSale_HookHidesConflict(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() != "postgres" {
			return
		}
		pool, _ := db.DB()
		pool.SetMaxIdleConns(0) // new connections get the setting
		var name string
		ok(t, "name", db.Raw("SELECT current_database()").Scan(&name).Error)
		ok(t, "ALTER", db.Exec(fmt.Sprintf("ALTER DATABASE %q SET default_transaction_isolation = 'repeatable read'", name)).Error)
		fresh(t, db, 10, &Tallied{}, &Tally{})
		ok(t, "Create", db.Create(&Tally{ID: 1}).Error)
		s := newSale[Tallied](t, db)
		for i := range int64(3) {
			_, err := s.Sell(t.Context(), 42, 1, &Tallied{SKU: 42, other: db})
			ok(t, "Sell", err)
			var tally Tally
			ok(t, "Take", db.Take(&tally).Error)
			if want := 2 * (i + 1); tally.N != want {
				t.Fatalf("after sale %d the tally is %d, want %d", i+1, tally.N, want)
			}
		}
	})
}

// TestSale_AutocommitOff: a read has left a transaction open on the only connection, and no level can be
// set there.
func TestSale_AutocommitOff(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		if db.Name() != "mysql" {
			return
		}
		fresh(t, db, 10, &Order{})
		cfg, err := mysql.ParseDSN(os.Getenv("ONELANE_MYSQL_DSN"))
		ok(t, "ParseDSN", err)
		cfg.DBName, cfg.ParseTime, cfg.Params = db.Migrator().CurrentDatabase(), true, map[string]string{"autocommit": "0"}
		off, err := gorm.Open(gormmysql.Open(cfg.FormatDSN()), &gorm.Config{Logger: logger.Discard})
		ok(t, "Open", err)
		pool, err := off.DB()
		ok(t, "DB", err)
		defer pool.Close()
		pool.SetMaxOpenConns(1)
		sale := newSale[Order](t, off)
		stock.AskForLevel(sale)
		ok(t, "read", off.Take(&Stock{}).Error)
		left, err := sale.Sell(t.Context(), 42, 1, &Order{SKU: 42, Buyer: 1})
		if ok(t, "Sell", err); left != 9 {
			t.Errorf("%d left", left)
		}
		wantBooks[Order](t, db, 10, 1)
	})
}
