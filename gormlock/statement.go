package gormlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
)

// enter lets a statement run; the context it gets has the values of ctx, and ends with the group.
func (s *turn) enter(ctx context.Context, query string) (context.Context, error) {
	if _, err := s.t.conn(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over { // since then
		return nil, sql.ErrTxDone
	}
	s.look()
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
	return within{s.group.ctx, context.WithoutCancel(ctx)}, nil
}

// note looks at a statement that is about to be sent.
//
// MySQL's REPEATABLE READ and SQLite's transactions see what was committed before their first read, and who comes later
// must see what was committed before it came; a locking read or a subquery of a write sees the newest rows.
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
	default: // DDL, or a procedure that does some
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

// firstWord returns the first word of a statement in capitals, and what follows.
func firstWord(query string) (word, rest string) {
	query = strings.TrimLeft(query, " \t\r\n(")
	end := strings.IndexFunc(query, func(r rune) bool { return !unicode.IsLetter(r) })
	if end < 0 {
		end = len(query)
	}
	return strings.ToUpper(query[:end]), query[end:]
}

// snapshot is when the group's transaction first read; zero where it did not, or does not mind.
func (g *group) snapshot() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.read
}

// errRowsOpen comes before the drivers of MySQL and PostgreSQL give the connection up, which is that of the whole group.
var errRowsOpen = errors.New("gormlock: the rows of an earlier query are still open, and the connection can do one thing at a time: close them first")

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

// look judges the rows that were read since, and forgets the closed ones. s.mu is held.
func (s *turn) look() {
	open := s.rows[:0]
	for _, r := range s.rows {
		if !s.closed(r) {
			open = append(open, r)
		}
	}
	s.rows = open
}

// closed says whether rows are, and judges what they ended with. It is Columns that tells, as Err is for the goroutine
// that calls Next. s.mu is held.
func (s *turn) closed(r *sql.Rows) bool {
	_, err := r.Columns()
	if err != nil && err.Error() != "sql: Rows are closed" {
		s.judge(err)
	}
	return err != nil
}

// judge looks at the error of a statement: a function that goes on after one that took the transaction away would write
// outside of any. s.mu is held.
func (s *turn) judge(err error) {
	switch {
	case err == nil || s.failed != nil:
	case s.gone(err):
	case !harmless(err):
		s.failed = guardError(s.group.demand.keys, fmt.Errorf("a statement failed before, and the transaction may be gone: %w", err))
	}
}

// gone says whether the database ended the group's transaction with the statement that returned err, and ends the group then.
// s.mu is held.
func (s *turn) gone(err error) bool {
	g := s.group
	if g.t.pool.dialect.name == "sqlite" {
		if _, begin := g.t.ExecContext(context.Background(), "BEGIN"); begin != nil { // see ended
			return false
		}
	} else if !gone(err) {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	s.failed = g.fail(err)
	return true
}
