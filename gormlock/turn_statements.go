package gormlock

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"time"
	"unicode"
)

// errRowsOpen comes before the drivers of MySQL and PostgreSQL give up the group's connection.
var errRowsOpen = errors.New("gormlock: the rows of an earlier query are still open, " +
	"and the connection can do one thing at a time: close them first")

// statementContext ends with one context and has the values of another one.
type statementContext struct {
	context.Context
	values context.Context
}

func (c statementContext) Value(key any) any { return c.values.Value(key) }

// enter lets a statement run and returns its context.
func (s *turn) enter(ctx context.Context, query string) (context.Context, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed { // since the transaction was asked for its connection
		return nil, sql.ErrTxDone
	}
	s.rows = slices.DeleteFunc(s.rows, s.rowsClosed)
	switch {
	case s.failed != nil:
		return nil, s.failed
	case len(s.rows) > 0 && s.t.pool.dialect.name != "sqlite":
		return nil, errRowsOpen
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.running++
	s.group.note(query)
	return statementContext{s.group.ctx, context.WithoutCancel(ctx)}, nil
}

// leave ends a statement.
func (s *turn) leave(err error, rows *sql.Rows) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.judge(err)
	if rows != nil {
		s.rows = append(s.rows, rows)
	}
	if s.running--; s.running == 0 && s.idle != nil {
		close(s.idle)
	}
}

// note looks at a statement that is about to be sent.
//
// MySQL's REPEATABLE READ and SQLite's transactions see what was committed before their first read.
// A later caller must see what was committed before it came. Locking reads and subqueries of writes
// see the newest rows.
func (g *group) note(query string) {
	reads, ends := true, false
	switch word, rest := firstWord(query); word {
	case "INSERT", "UPDATE", "DELETE", "REPLACE", "SAVEPOINT", "RELEASE":
		reads = false
	case "SELECT", "WITH", "VALUES", "SHOW", "EXPLAIN", "SIGNAL":
	case "ROLLBACK":
		next, _ := firstWord(rest)
		reads, ends = false, next != "TO"
	case "COMMIT", "END", "ABORT", "PREPARE", "": // no word: it may be behind a comment
		ends = true
	default: // DDL, or a procedure that runs some
		ends = g.t.pool.dialect.name == "mysql"
	}
	if several(query) {
		reads, ends = true, true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.doubtful = g.doubtful || ends
	if reads && g.read.IsZero() && g.t.pool.dialect.name != "postgres" {
		g.read = time.Now()
	}
}

// several reports whether a text may hold more than one statement.
func several(query string) bool {
	return strings.Contains(strings.TrimRight(query, "; \t\r\n"), ";")
}

// firstWord returns the first word of a statement in capitals, and what follows. There is none in a
// comment that MySQL executes.
func firstWord(query string) (word, rest string) {
	query = strings.TrimLeft(query, " \t\r\n\f\v;(")
	for _, c := range []struct{ begin, end string }{{"/*", "*/"}, {"--", "\n"}, {"#", "\n"}} {
		if _, rest, ok := strings.Cut(query, c.end); ok && strings.HasPrefix(query, c.begin) &&
			!strings.HasPrefix(query, "/*!") && !strings.HasPrefix(query, "/*M!") {
			return firstWord(rest)
		}
	}
	end := strings.IndexFunc(query, func(r rune) bool { return !unicode.IsLetter(r) })
	if end < 0 {
		end = len(query)
	}
	return strings.ToUpper(query[:end]), query[end:]
}

// rowsClosed reports whether rows are closed, and judges the error they ended with. It asks
// Columns, because Err is for the goroutine that calls Next. s.mu is held.
func (s *turn) rowsClosed(r *sql.Rows) bool {
	_, err := r.Columns()
	if err != nil && err.Error() != "sql: Rows are closed" {
		s.judge(err)
	}
	return err != nil
}

// judge looks at the error of a statement. If the error took the transaction away, a function that
// goes on would write outside of any. s.mu is held.
func (s *turn) judge(err error) {
	switch {
	case err == nil || s.failed != nil:
	case s.gone(err):
	case !harmless(s.t.pool.dialect, err):
		s.failed = s.group.error("a statement failed before, and the transaction may be gone: %w", err)
	}
}

// gone reports whether the database ended the group's transaction with the statement that returned
// err, and ends the group then. s.mu is held.
func (s *turn) gone(err error) bool {
	g := s.group
	if g.t.pool.dialect.name == "sqlite" {
		// See transaction.ended.
		if _, begin := g.t.ExecContext(context.Background(), "BEGIN"); begin != nil {
			return false
		}
	} else if !gone(err) && !g.timedOut(err) {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	s.failed = g.fail(err)
	return true
}

// timedOut is the one of the group's transaction.
func (g *group) timedOut(err error) bool {
	g.t.mu.Lock()
	defer g.t.mu.Unlock()
	return g.t.real != nil && g.t.timedOut(g.ctx, err)
}
