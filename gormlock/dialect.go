package gormlock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"gorm.io/gorm"

	"github.com/onelane/onelane/internal/sqlerr"
)

// ErrDialect means that gormlock does not know this kind of database. Its savepoints and the errors
// that end a transaction may be others, so nothing could be guarded.
var ErrDialect = errors.New("gormlock: this works on MySQL, MariaDB, PostgreSQL and SQLite only")

// dialect is what differs between databases in the statements of this package.
type dialect struct {
	name     string // as GORM's dialector calls itself
	now      string // microseconds since 1970 by the database's clock, in any time zone
	greatest string
	conflict string // ends an INSERT whose row may be there already
	locking  string // makes a SELECT lock and read the newest row
}

var dialects = map[string]dialect{
	"mysql": {
		// UNIX_TIMESTAMP is wrong in the hour in which clocks are put back.
		now:      "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
		greatest: "GREATEST",
		// INSERT IGNORE would ignore other errors too.
		conflict: "ON DUPLICATE KEY UPDATE name = VALUES(name)",
		locking:  "FOR UPDATE",
	},
	"postgres": {
		// now() is the time of BEGIN.
		now:      "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)",
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

// sql writes a statement of this package for the database. It replaces {now}, {greatest},
// {conflict} and {locking}, and ? for each argument.
func (d dialect) sql(text string) string {
	text = strings.NewReplacer("{now}", d.now, "{greatest}", d.greatest,
		"{conflict}", d.conflict, "{locking}", d.locking).Replace(text)
	for i := 1; d.name == "postgres" && strings.Contains(text, "?"); i++ {
		text = strings.Replace(text, "?", "$"+strconv.Itoa(i), 1)
	}
	return text
}

const conflictTries = 10

// retry runs fn again if the database resolved a conflict against it: at most ten times, with
// growing pauses, until ctx ends.
func retry(ctx context.Context, fn func() error) error {
	return repeat(ctx, conflictTries, sqlerr.Conflict, fn)
}
