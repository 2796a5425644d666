package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	_ "github.com/glebarez/go-sqlite" // "sqlite"
	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/sqlbackend"
	"github.com/onelane/onelane/internal/sqltable"
)

// sqlPasswordEnv is the password of the user in -sql.
const sqlPasswordEnv = "ONELANE_SQL_PASSWORD"

// sqlPlace is the table onelane_locks of a database. A key of a Locker is a row.
type sqlPlace struct {
	*sql.DB
	dialect sqltable.Dialect
	name    string // for errors, without a password
}

func openSQL(address string) (place, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("-sql: %w", errors.Unwrap(err)) // which would show a password
	}
	if password := os.Getenv(sqlPasswordEnv); password != "" && u.User != nil {
		u.User = url.UserPassword(u.User.Username(), password)
	}
	p := sqlPlace{name: u.Redacted()}
	kind := u.Scheme
	switch kind {
	case "postgres", "postgresql":
		kind = sqltable.Postgres
		p.DB, err = openPostgres(u)
	case "mysql":
		p.DB, err = openMySQL(u)
	case "sqlite":
		p.DB, err = sql.Open("sqlite", "file:"+cmp.Or(u.EscapedPath(), u.Opaque)+"?mode=rw&_pragma=busy_timeout(5000)")
	default:
		return nil, fmt.Errorf("-sql: %q is not postgres, mysql or sqlite", u.Scheme)
	}
	if err != nil {
		return nil, fmt.Errorf("-sql: %w", err)
	}
	p.dialect, _ = sqltable.Of(kind)
	return p, nil
}

func openPostgres(u *url.URL) (*sql.DB, error) {
	config, err := pgx.ParseConfig(u.String())
	if err != nil {
		return nil, err
	}
	return stdlib.OpenDB(*config), nil
}

func openMySQL(u *url.URL) (*sql.DB, error) {
	// ParseDSN knows the parameters.
	config, err := mysql.ParseDSN("tcp(" + cmp.Or(u.Host, "127.0.0.1") + ")/" + strings.TrimPrefix(u.EscapedPath(), "/") + "?" + u.RawQuery)
	if err != nil {
		return nil, err
	}
	config.User = u.User.Username()
	config.Passwd, _ = u.User.Password()
	config.Logger = &mysql.NopLogger{} // it returns what it logs
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

func (p sqlPlace) opener(timeout time.Duration) core.Opener {
	return sqlbackend.New(p.DB, sqlbackend.WithTimeout(timeout))
}

// scan implements place. The names are binary, so those with the same beginning are neighbours.
func (p sqlPlace) scan(ctx context.Context, s search) (keys []string, more bool, err error) {
	from := s.prefix + "{" + escape.Replace(s.start)
	if s.prefix == "" {
		from = s.start
	}
	const batch = 500
	statement := "SELECT name FROM onelane_locks WHERE name >= ? AND state <> 0 AND expires_at + orphan > {now} "
	if s.held {
		statement += "AND state = 1 "
	}
	statement = p.dialect.SQL(statement + fmt.Sprintf("ORDER BY name LIMIT %d", batch))
	for begin := []byte(from); ; {
		names, err := p.names(ctx, statement, begin)
		if err != nil {
			return keys, false, fmt.Errorf("table onelane_locks of %s: %w", p.name, err)
		}
		end := len(names) < batch
		for _, name := range names {
			if end = end || !strings.HasPrefix(name, from); !strings.HasPrefix(name, from) {
				break
			}
			begin = []byte(name + "\x00")
			key, ok := userKey(s.prefix, name)
			if !ok {
				continue
			}
			if !s.held && len(keys) == s.limit {
				slices.Sort(keys)
				return keys, true, nil
			}
			keys = append(keys, key)
		}
		if end {
			slices.Sort(keys) // the table sorts them as they are escaped
			return keys, false, nil
		}
	}
}

func (p sqlPlace) names(ctx context.Context, statement string, begin []byte) (names []string, err error) {
	rows, err := p.QueryContext(ctx, statement, begin)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, rows.Err()
}
