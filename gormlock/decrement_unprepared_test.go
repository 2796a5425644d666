package gormlock_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"testing"

	gomysql "github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// fullConnector is a driver whose server prepares no statement that asks for LAST_INSERT_ID, as if
// max_prepared_stmt_count were reached.
type fullConnector struct{ driver.Connector }

func (c fullConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &fullConn{rewordConn{conn, func(err error) error { return err }}}, nil
}

type fullConn struct{ rewordConn }

func (c *fullConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if query == "SELECT LAST_INSERT_ID()" {
		return nil, &gomysql.MySQLError{Number: 1461, Message: "Can't create more than max_prepared_stmt_count statements"}
	}
	return c.rewordConn.PrepareContext(ctx, query)
}

// TestDecrement_TriggerUnprepared: GORM's Row is empty if the statement cannot be prepared. It must
// not panic, which would leave GORM's transaction, and the lock on the row, open forever.
func TestDecrement_TriggerUnprepared(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, plain *gorm.DB) {
		if plain.Name() != "mysql" {
			return
		}
		ok(t, "AutoMigrate", plain.AutoMigrate(&Stock{}, &Item{}))
		put(t, plain, 42, 3)
		ok(t, "CREATE", plain.Exec("CREATE TRIGGER audit AFTER UPDATE ON stocks FOR EACH ROW "+
			"INSERT INTO items (stock_id, name) VALUES (NEW.id, 'audit')").Error)
		db := openMySQL(t, plain, func(c driver.Connector) driver.Connector { return fullConnector{c} },
			config(func(g *gorm.Config) { g.PrepareStmt = true }))
		ok(t, "Use", db.Use(gormlock.New(locker(t, backendtest.Memory()))))
		var err error
		func() {
			defer func() {
				if p := recover(); p != nil {
					t.Errorf("Decrement panics: %v", p)
				}
			}()
			err = decrement(db.Model(&Stock{}).Where("sku = 42"), "left", 1)
		}()
		if e, found := errors.AsType[*gomysql.MySQLError](err); !found || e.Number != 1461 {
			t.Errorf("got %v, want the server's error", err)
		}
		if n := inUse(t, db); n != 0 {
			t.Errorf("%d connections are in use", n)
		}
		wantLeft(t, plain, 42, 3)
	})
}
