package gormlock

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/onelane/onelane/internal/sqlerr"
)

// savepoint has a name that no function can hit by chance.
var savepoint = "onelane_" + strings.ToLower(rand.Text()[:16])

var (
	makeSavepoint       = "SAVEPOINT " + savepoint
	releaseSavepoint    = "RELEASE SAVEPOINT " + savepoint
	rollbackToSavepoint = "ROLLBACK TO SAVEPOINT " + savepoint
)

// mark makes the savepoint of the next turn, unless one stands.
func (g *group) mark() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.savepoint {
		return nil
	}
	if err := g.exec(makeSavepoint); err != nil {
		return g.fail(err)
	}
	g.savepoint = true
	return nil
}

// keep ends a turn whose work is to be committed.
func (g *group) keep() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.savepoint = false
	err := g.release()
	switch {
	case err == nil:
		g.kept++
		g.doubtful = false
		return nil
	case aborted(err):
		if undone := g.rollback(); undone != nil {
			return undone
		}
		return g.error("a statement failed and its error was not returned: %w", err)
	}
	return g.fail(err)
}

// undo ends a turn whose work is taken back.
func (g *group) undo() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.rollback()
}

// rollback goes back to the savepoint. After the group has failed it sends nothing. g.mu is held.
func (g *group) rollback() error {
	if g.err != nil {
		return g.err
	}
	if err := g.exec(rollbackToSavepoint); err != nil {
		return g.fail(err)
	}
	g.savepoint, g.doubtful = true, false
	return nil
}

// release releases the savepoint, which fails if the transaction is not what it was. If another
// turn follows and the database can do it, the next savepoint is made in the same round trip. g.mu
// is held.
func (g *group) release() error {
	both := ""
	switch p := g.t.pool; {
	case !g.more.Load() || p.oneByOne.Load():
	case p.dialect.name == "postgres":
		both = releaseSavepoint + "; " + makeSavepoint
	case p.dialect.name == "mysql":
		// MariaDB knows compound statements. MySQL refuses them and does nothing.
		both = "BEGIN NOT ATOMIC " + releaseSavepoint + "; " + makeSavepoint + "; END"
	}
	if both == "" {
		return g.exec(releaseSavepoint)
	}
	err := g.exec(both)
	if err == nil {
		g.savepoint = true
		return nil
	}
	switch number := sqlerr.MySQLNumber(err); {
	case number == 0 && g.t.pool.dialect.name == "mysql":
		// Another driver: MySQL may have refused it.
		if again := g.exec(releaseSavepoint); again != nil {
			return err
		}
		g.t.pool.oneByOne.Store(true)
		return nil
	case number == 0 || number == sqlerr.MySQLNoSavepoint:
		return err
	case slices.Contains(sqlerr.MySQLInterrupted, number):
		// The first half may have been done.
		if again := g.exec(releaseSavepoint); !noSavepoint(again) {
			return again
		}
		return err
	}
	g.t.pool.oneByOne.Store(true)
	return g.exec(releaseSavepoint)
}

func (g *group) exec(statement string) error {
	_, err := g.t.ExecContext(g.ctx, statement)
	return err
}

// fail ends the group because of err and returns the error of its callers. g.mu is held.
func (g *group) fail(err error) error {
	switch {
	case g.err != nil:
	case noSavepoint(err):
		g.err = g.error("%w: a function of the group ended its transaction, "+
			"by DDL, COMMIT or ROLLBACK: %w", ErrCommitUnknown, err)
	case g.ctx.Err() != nil:
		g.err = g.t.explain(err)
	default:
		g.err = g.error("the transaction of the group is rolled back: %w", err)
	}
	g.doubt()
	return g.err
}

// doubt makes the outcome unknown if a statement of the turn may have committed. g.mu is held.
func (g *group) doubt() {
	if g.err != nil && g.doubtful && !errors.Is(g.err, ErrCommitUnknown) {
		g.err = g.error("%w: a function of the group may have ended its transaction, "+
			"by DDL or COMMIT: %w", ErrCommitUnknown, g.err)
	}
}

// error names the keys.
func (g *group) error(format string, args ...any) error {
	return guardError(g.demand.keys, fmt.Errorf(format, args...))
}
