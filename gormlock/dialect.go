package gormlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"gorm.io/gorm"
)

// ErrDialect says that the kit's own tables are not made for this kind of database.
var ErrDialect = errors.New("gormlock: the tables of onelane are made for MySQL, MariaDB, PostgreSQL and SQLite only")

// dialect is what differs between databases in the statements of this package.
type dialect struct {
	name     string // as GORM's dialector calls itself
	now      string // microseconds since 1970 by the database's clock, whatever its time zone is
	greatest string
	conflict string // what an INSERT ends with whose row may be there already
	locking  string // what makes a SELECT lock and read the newest row
}

var dialects = map[string]dialect{
	"mysql": {
		now:      "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))", // UNIX_TIMESTAMP is off where clocks are put back
		greatest: "GREATEST",
		conflict: "ON DUPLICATE KEY UPDATE name = VALUES(name)", // INSERT IGNORE would ignore other errors too
		locking:  "FOR UPDATE",
	},
	"postgres": {
		now:      "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)", // now() is when the transaction began
		greatest: "GREATEST",
		conflict: "ON CONFLICT (name) DO NOTHING",
		locking:  "FOR UPDATE",
	},
	"sqlite": {
		now:      "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000",
		greatest: "MAX",
		conflict: "ON CONFLICT (name) DO NOTHING",
	},
}

func dialectOf(db *gorm.DB) (dialect, error) {
	if db.Dialector == nil {
		return dialect{}, fmt.Errorf("%w, and this database has no dialector", ErrDialect)
	}
	name := db.Dialector.Name()
	d, ok := dialects[name]
	if !ok {
		return d, fmt.Errorf("%w, not for %q", ErrDialect, name)
	}
	d.name = name
	return d, nil
}

// sql writes a statement of this package for the database: {now}, {greatest}, {conflict} and {locking}, and ? for each
// argument.
func (d dialect) sql(text string) string {
	text = strings.NewReplacer("{now}", d.now, "{greatest}", d.greatest, "{conflict}", d.conflict, "{locking}", d.locking).Replace(text)
	if d.name != "postgres" {
		return text
	}
	var b strings.Builder
	for i, part := range strings.Split(text, "?") {
		if i > 0 {
			b.WriteString("$" + strconv.Itoa(i))
		}
		b.WriteString(part)
	}
	return b.String()
}

const conflictTries = 10

// retry runs fn until it fails with something else than a conflict that the database resolved against it.
func retry(ctx context.Context, fn func() error) error {
	return repeat(ctx, conflictTries, isConflict, fn)
}

// isConflict says whether the database rolled a transaction back because of others, so that it may be run again: a
// deadlock, a serialization failure, a busy SQLite. A COMMIT whose outcome is unknown is none, whatever came with it.
func isConflict(err error) bool {
	if errors.Is(err, ErrCommitUnknown) {
		return false
	}
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return state.SQLState() == "40001" || state.SQLState() == "40P01"
	}
	if number, ok := mysqlNumber(err); ok {
		return number == deadlock || number == 1020 // changed since the snapshot, of MariaDB
	}
	return sqliteBusy(err)
}

// sqliteBusy recognizes SQLITE_BUSY and SQLITE_LOCKED, with what they are extended by, of the drivers there are.
func sqliteBusy(err error) bool {
	return inTree(err, func(err error) bool {
		t := reflect.TypeOf(err)
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t.Name() != "Error" || !strings.Contains(t.PkgPath(), "sqlite") {
			return false
		}
		code := 0
		if c, ok := err.(interface{ Code() int }); ok {
			code = c.Code()
		} else if v := reflect.Indirect(reflect.ValueOf(err)); v.Kind() == reflect.Struct {
			if f := v.FieldByName("Code"); f.IsValid() && f.CanInt() {
				code = int(f.Int())
			}
		}
		return code&0xff == 5 || code&0xff == 6
	})
}

// querier is what the statements of this package run on: a *sql.DB, a *sql.Tx, a connection.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}
