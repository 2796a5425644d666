package gormlock

import (
	"errors"
	"fmt"

	"gorm.io/gorm"

	"github.com/onelane/onelane/internal/sqltable"
)

// ErrDialect means that gormlock does not know this kind of database. Its savepoints and the errors
// that end a transaction may be others, so nothing could be guarded.
var ErrDialect = errors.New("gormlock: this works on MySQL, MariaDB, PostgreSQL and SQLite only")

func dialectOf(db *gorm.DB) (sqltable.Dialect, error) {
	if db.Dialector == nil {
		return sqltable.Dialect{}, fmt.Errorf("%w, and this database has no dialector", ErrDialect)
	}
	name := db.Dialector.Name()
	d, ok := sqltable.Of(name)
	if !ok {
		return d, fmt.Errorf("%w, not for %q", ErrDialect, name)
	}
	return d, nil
}
