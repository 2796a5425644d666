package main

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/glebarez/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
)

// losing is SQLite, whose answers to COMMIT are lost while lose is set.
type losing struct {
	sqlite driver.Driver
	name   string
}

var lose atomic.Bool

func (d losing) Driver() driver.Driver { return d.sqlite }

func (d losing) Connect(context.Context) (driver.Conn, error) {
	c, err := d.sqlite.Open(d.name)
	if err != nil {
		return nil, err
	}
	return losingConn{c}, nil
}

type losingConn struct{ driver.Conn }

func (c losingConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	tx, err := c.Conn.(driver.ConnBeginTx).BeginTx(ctx, opts)
	return losingTx{tx}, err
}

type losingTx struct{ driver.Tx }

func (t losingTx) Commit() error {
	if err := t.Tx.Commit(); err != nil || !lose.Load() {
		return err
	}
	return errors.New("the answer was lost")
}

// The order may be there. A buyer must not get, for a whole day, the answer that it failed.
func TestBuy_UnknownCommit(t *testing.T) {
	for _, guarded := range []bool{false, true} {
		plain, err := sql.Open(sqlite.DriverName, "")
		if err != nil {
			t.Fatal(err)
		}
		_ = plain.Close()
		pool := sql.OpenDB(losing{plain.Driver(), t.TempDir() + "/sale.db?_pragma=busy_timeout(10000)"})
		defer pool.Close()
		db, err := gorm.Open(&sqlite.Dialector{Conn: pool}, &gorm.Config{Logger: logger.Discard})
		if err != nil {
			t.Fatal(err)
		}
		s := &service{db: db, guarded: guarded, records: testutil.Locker(t)}
		if err := errors.Join(db.Use(gormlock.New(s.records)), s.prepare(5)); err != nil {
			t.Fatal(err)
		}
		routes := s.routes()
		buy := func() *httptest.ResponseRecorder {
			r := httptest.NewRequest(http.MethodPost, "/orders", nil)
			r.Header.Set("Authorization", "Bearer ann")
			r.Header.Set("Idempotency-Key", `"one"`)
			w := httptest.NewRecorder()
			routes.ServeHTTP(w, r)
			return w
		}
		lose.Store(true)
		first := buy()
		lose.Store(false)
		again := buy()
		var orders int64
		if err := db.Model(&Order{}).Count(&orders).Error; err != nil || orders != 1 {
			t.Fatalf("guarded %v: %d orders, %v", guarded, orders, err)
		}
		if first.Code != http.StatusGatewayTimeout || again.Code != http.StatusConflict {
			t.Errorf("guarded %v: the order is there; the buyer got %d, and the retry %d (replayed: %q)",
				guarded, first.Code, again.Code, again.Header().Get("Idempotency-Replayed"))
		}
	}
}
