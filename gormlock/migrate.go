package gormlock

import (
	"embed"
	"fmt"
	"iter"
	"slices"
	"strings"

	"gorm.io/gorm"

	"github.com/onelane/onelane/internal/sqlerr"
)

//go:embed schema/*.sql
var schemas embed.FS

const migrateTries = 3

// Migrate creates the tables that [Fenced], [Once] and [Table] need, if they do not exist:
// onelane_fences, onelane_once and onelane_locks. Call it at every start, outside a transaction.
// Several processes may call it at once. If you use a migration tool, give it the same statements:
// they are in the files schema/mysql.sql, schema/postgres.sql and schema/sqlite.sql of this
// package.
//
// A table of that name with another primary key is an error, and so is a key that is compared as
// text. A collation that treats two keys as one would refuse the wrong holder. Columns that are too
// short are an error too, because MySQL may truncate silently. On databases other than MySQL,
// MariaDB, PostgreSQL and SQLite it returns [ErrDialect].
//
// With dbresolver, Migrate and [Purge] use the source, where writes outside a transaction go.
// Transactions begin on the database of gorm.Open. If that is another database, also call Migrate
// and Purge with a gorm.DB without dbresolver.
func Migrate(db *gorm.DB) error {
	d, err := dialectOf(db)
	if err != nil {
		return err
	}
	if _, open := transactionOf(db.Statement.ConnPool); open {
		return fmt.Errorf("gormlock: Migrate in a transaction, which MySQL would commit: %w", gorm.ErrInvalidTransaction)
	}
	schema, err := schemas.ReadFile("schema/" + d.name + ".sql")
	if err != nil {
		return err
	}
	db = unguarded(db)
	for s := range statementsIn(string(schema)) {
		// IF NOT EXISTS waits for all who write to the table, and all who come later wait behind it.
		if strings.Contains(s, "CREATE INDEX") && d.name == "postgres" && db.Migrator().HasIndex("onelane_once", "onelane_once_created_at") {
			continue
		}
		err := repeat(db.Statement.Context, migrateTries, madeAtOnce, func() error { return db.Exec(s).Error })
		if err != nil {
			return fmt.Errorf("gormlock: Migrate: %w", err)
		}
	}
	for _, table := range []string{"onelane_fences", "onelane_once", "onelane_locks"} {
		if err := checkColumns(db, table); err != nil {
			return err
		}
	}
	return nil
}

// statementsIn splits a schema. A checkout on Windows may end its lines with \r\n.
func statementsIn(schema string) iter.Seq[string] {
	return strings.SplitSeq(strings.TrimRight(schema, ";\r\n"), ";")
}

// unguarded returns a session of db that keeps only its context, without guards. With dbresolver it
// also reads at the writer.
func unguarded(db *gorm.DB) *gorm.DB {
	db = db.Session(&gorm.Session{NewDB: true, Context: withoutGuards(db.Statement.Context)})
	return db.Set(writeSetting, struct{}{}).Session(&gorm.Session{})
}

// madeAtOnce reports whether PostgreSQL failed because another session makes the same: IF NOT
// EXISTS does not help then.
func madeAtOnce(err error) bool {
	return slices.Contains([]string{"23505", "42P07", "42710"}, sqlerr.PostgresState(err))
}

// lengths are the bytes that the columns must have room for. A value has core's limit.
var lengths = map[string]map[string]int64{
	"onelane_fences": {"name": maxOnceKey, "owner": maxOwner},
	"onelane_once":   {"name": maxOnceKey, "attempt": 32, "fingerprint": 64, "result": maxOnceResult},
	"onelane_locks":  {"name": maxTableKey, "owner": maxOwner, "value": 16 << 20},
}

// checkColumns fails if the primary key of a table is not one binary column "name". It also fails
// if a column is too short, which only MySQL's can be.
func checkColumns(db *gorm.DB, table string) error {
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("gormlock: Migrate: table %s is there already, %s; drop the table, or see the package's folder schema",
			table, fmt.Sprintf(format, args...))
	}
	columns, err := db.Migrator().ColumnTypes(table)
	if err != nil {
		return fmt.Errorf("gormlock: Migrate: table %s: %w", table, err)
	}
	var key []string
	kind := "missing"
	for _, c := range columns {
		if primary, _ := c.PrimaryKey(); primary {
			key = append(key, c.Name())
		}
		if c.Name() == "name" {
			kind = strings.ToLower(c.DatabaseTypeName())
		}
		want, found := lengths[table][c.Name()]
		if length, known := c.Length(); db.Name() == "mysql" && found && (!known || length < want) {
			return wrong("its column %s has %s(%d): it must have room for %d bytes", c.Name(), strings.ToLower(c.DatabaseTypeName()), length, want)
		}
	}
	binary := slices.Contains([]string{"varbinary", "binary", "blob", "bytea"}, kind)
	// With more columns in the key a name could come twice.
	if !binary || !slices.Equal(key, []string{"name"}) {
		return wrong("its column name is %s, and its primary key is %q: it must be the binary column name alone", kind, key)
	}
	return checkPrefix(db, wrong, table)
}

// checkPrefix fails if MySQL's primary key is only the beginning of the name.
func checkPrefix(db *gorm.DB, wrong func(format string, args ...any) error, table string) error {
	if db.Name() != "mysql" {
		return nil
	}
	var prefix *int64
	err := db.Raw("SELECT sub_part FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = ? AND index_name = 'PRIMARY'", table).Scan(&prefix).Error
	switch {
	case err != nil:
		return fmt.Errorf("gormlock: Migrate: the key of table %s: %w", table, err)
	case prefix != nil:
		return wrong("its primary key is the first %d bytes of the name: it must be all of it", *prefix)
	}
	return nil
}
