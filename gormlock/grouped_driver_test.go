package gormlock_test

import (
	"context"
	"database/sql/driver"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil/backendtest"
)

// otherMySQL is another driver, connected to MySQL, which has no BEGIN NOT ATOMIC.
type otherMySQL struct{ driver.Connector }

func (c otherMySQL) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return notAtomicConn{&rewordConn{conn, asOtherError}}, nil
}

type notAtomicConn struct{ *rewordConn }

func (c notAtomicConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if strings.HasPrefix(query, "BEGIN NOT ATOMIC") {
		return nil, &otherError{Code: 1064, State: "42000", Message: "You have an error in your SQL syntax"}
	}
	return c.rewordConn.ExecContext(ctx, query, args)
}

// TestGrouped_OtherDriver: with a driver whose errors are not known, MySQL's refusal of BEGIN NOT
// ATOMIC costs nobody its turn.
func TestGrouped_OtherDriver(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, plain *gorm.DB) {
		if plain.Name() != "mysql" {
			return
		}
		put(t, plain, 42, 10)
		db := openMySQL(t, plain, func(c driver.Connector) driver.Connector { return otherMySQL{c} })
		l := locker(t, backendtest.Memory())
		ok(t, "Use", db.Use(gormlock.New(l)))
		callers := []*caller{taker(42), taker(42), taker(42)}
		together(t, db, l, callers...)
		for i, c := range callers {
			if c.err != nil {
				t.Errorf("caller %d: %v", i, c.err)
			}
		}
		wantLeft(t, db, 42, 7)
	})
}
