package sqltable

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/onelane/onelane/internal/sqlerr"
)

const migrateTries = 3

// Migrate runs the statements of a schema that name the table, and checks its columns. lengths has each
// column, and the bytes that it must have room for. Several processes may call it at once.
func Migrate(ctx context.Context, c Conn, d Dialect, schema, table string, lengths map[string]int64) error {
	for s := range statementsIn(schema) {
		if !strings.Contains(s, " "+table+" ") {
			continue
		}
		// IF NOT EXISTS waits for all who write to the table, and all who come later wait behind it.
		if _, index, is := strings.Cut(s, "CREATE INDEX IF NOT EXISTS "); is && d.Name == Postgres {
			there, err := indexed(ctx, c, table, strings.Fields(index)[0])
			if err != nil {
				return fmt.Errorf("table %s: %w", table, err)
			}
			if there {
				continue
			}
		}
		err := Repeat(ctx, migrateTries, madeAtOnce, func() error {
			return Repeat(ctx, ConflictTries, sqlerr.SQLiteBusy, func() error {
				_, err := c.ExecContext(ctx, s)
				return err
			})
		})
		if err != nil {
			return err
		}
	}
	return Repeat(ctx, ConflictTries, sqlerr.SQLiteBusy, func() error { return checkColumns(ctx, c, d, table, lengths) })
}

// statementsIn splits a schema. A checkout on Windows may end its lines with \r\n.
func statementsIn(schema string) iter.Seq[string] {
	return strings.SplitSeq(strings.TrimRight(schema, ";\r\n"), ";")
}

// madeAtOnce reports whether PostgreSQL failed because another session makes the same: IF NOT
// EXISTS does not help then.
func madeAtOnce(err error) bool {
	return slices.Contains([]string{"23505", "42P07", "42710"}, sqlerr.PostgresState(err))
}

// indexed reports whether a table of PostgreSQL has an index.
func indexed(ctx context.Context, c Conn, table, index string) (bool, error) {
	rows, err := c.QueryContext(ctx, `SELECT 1 FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = to_regclass($1) AND c.relname = $2`, table, index)
	if err != nil {
		return false, err
	}
	there := rows.Next()
	return there, errors.Join(rows.Err(), rows.Close())
}

// columnsOf are the queries for the name, the type and the length of a table's columns, and whether
// they belong to its key. A table is found as the statements find it.
var columnsOf = map[string]string{
	MySQL: `SELECT column_name, data_type, COALESCE(character_maximum_length, 0), column_key = 'PRI'
FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = ? ORDER BY ordinal_position`,
	Postgres: `SELECT CAST(a.attname AS text), format_type(a.atttypid, NULL), 0, i.indrelid IS NOT NULL
FROM pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_index i
ON i.indrelid = a.attrelid AND i.indisprimary AND a.attnum = ANY (i.indkey)
WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum`,
	SQLite: `SELECT name, type, 0, pk > 0 FROM pragma_table_info(?)`,
}

// checkColumns fails if the primary key of a table is not one binary column "name", or if a column is
// missing. It also fails if a column is too short, which only MySQL's can be.
func checkColumns(ctx context.Context, c Conn, d Dialect, table string, lengths map[string]int64) error {
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("table %s is there already, %s; drop the table, or see the package's folder schema",
			table, fmt.Sprintf(format, args...))
	}
	rows, err := c.QueryContext(ctx, columnsOf[d.Name], table)
	if err != nil {
		return fmt.Errorf("table %s: %w", table, err)
	}
	defer rows.Close()
	var keys []string
	there := make(map[string]bool)
	kind := "missing"
	for rows.Next() {
		var name, is string
		var length int64
		var primary bool
		if err := rows.Scan(&name, &is, &length, &primary); err != nil {
			return fmt.Errorf("table %s: %w", table, err)
		}
		is, there[name] = strings.ToLower(is), true
		if primary {
			keys = append(keys, name)
		}
		if name == "name" {
			kind = is
		}
		if least, found := lengths[name]; d.Name == MySQL && found && length < least {
			return wrong("its column %s has %s(%d): it must have room for %d bytes", name, is, length, least)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("table %s: %w", table, err)
	}
	binary := slices.Contains([]string{"varbinary", "binary", "blob", "bytea"}, kind)
	// With more columns in the key a name could come twice.
	if !binary || !slices.Equal(keys, []string{"name"}) {
		return wrong("its column name is %s, and its primary key is %q: it must be the binary column name alone", kind, keys)
	}
	for _, name := range slices.Sorted(maps.Keys(lengths)) {
		if !there[name] {
			return wrong("it has no column %s", name)
		}
	}
	return checkPrefix(ctx, c, d, wrong, table)
}

// checkPrefix fails if MySQL's primary key is only the beginning of the name.
func checkPrefix(ctx context.Context, c Conn, d Dialect, wrong func(format string, args ...any) error, table string) error {
	if d.Name != MySQL {
		return nil
	}
	rows, err := c.QueryContext(ctx, "SELECT sub_part FROM information_schema.statistics "+
		"WHERE table_schema = DATABASE() AND table_name = ? AND index_name = 'PRIMARY'", table)
	if err != nil {
		return fmt.Errorf("the key of table %s: %w", table, err)
	}
	defer rows.Close()
	var prefix sql.Null[int64]
	for rows.Next() {
		if err := rows.Scan(&prefix); err != nil {
			return fmt.Errorf("the key of table %s: %w", table, err)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("the key of table %s: %w", table, err)
	}
	if prefix.Valid {
		return wrong("its primary key is the first %d bytes of the name: it must be all of it", prefix.V)
	}
	return nil
}
