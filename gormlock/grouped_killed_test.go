package gormlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

// lingering delays the block which ends a turn and begins the next. The block stops
// for a while before its work or in the middle of it, and is killed there.
type lingering struct {
	before, middle atomic.Bool
	blocks         atomic.Int32
	killed         func(id int)
}

type lingeringTx struct {
	*sql.Tx
	pool *lingering
}

func (t *lingeringTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	const begin, wait = "BEGIN NOT ATOMIC ", "SELECT SLEEP(30) INTO @slept; "
	if !strings.HasPrefix(query, begin) {
		return t.Tx.ExecContext(ctx, query, args...)
	}
	t.pool.blocks.Add(1)
	before, middle := t.pool.before.Swap(false), t.pool.middle.Swap(false)
	switch {
	case before:
		query = begin + wait + strings.TrimPrefix(query, begin)
	case middle:
		query = strings.Replace(query, "; ", "; "+wait, 1)
	default:
		return t.Tx.ExecContext(ctx, query, args...)
	}
	var id int
	if err := t.Tx.QueryRowContext(ctx, "SELECT CONNECTION_ID()").Scan(&id); err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		t.pool.killed(id)
	}()
	defer func() { <-done }()
	return t.Tx.ExecContext(ctx, query, args...)
}

// TestGrouped_KilledBetweenTwoTurns: on MariaDB a KILL QUERY hits the block that ends one turn and
// begins the next. If the block had done nothing, nothing happens. Otherwise the group is rolled
// back, and nobody succeeds. The outcome is not unknown, unless a function may have ended the
// transaction before.
func TestGrouped_KilledBetweenTwoTurns(t *testing.T) {
	t.Parallel()
	testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
		if !mariaDB(t, db) {
			return // MySQL refuses the block before it does anything
		}
		ok(t, "AutoMigrate", db.AutoMigrate(&Stock{}))
		put(t, db, 42, 10)
		admin := db.Session(&gorm.Session{NewDB: true})
		p := &lingering{killed: func(id int) {
			eventually(t, "the block waits", func() bool {
				var n int
				ok(t, "processlist", admin.Raw("SELECT COUNT(*) FROM "+processlist(t, admin)+" WHERE id = ? AND state = 'User sleep'", id).Row().Scan(&n))
				return n == 1
			})
			ok(t, "KILL", admin.Exec(fmt.Sprintf("KILL QUERY %d", id)).Error)
		}}
		under := reopen(t, db)
		wrapTx(t, under, func(tx *sql.Tx) gorm.ConnPool { return &lingeringTx{tx, p} })
		l := locker(t, backendtest.Memory())
		ok(t, "Use", under.Use(gormlock.New(l)))
		n := int64(10)
		for _, first := range []string{"", "CREATE TABLE ended (id int)"} {
			for where, stop := range map[string]*atomic.Bool{"before it": &p.before, "in its middle": &p.middle} {
				if stop == &p.middle && first != "" {
					continue // the block does not come so far
				}
				a, b := &caller{fn: func(tx *gorm.DB) error {
					stop.Store(true)
					err := take(tx, 42)
					if first != "" {
						err = errors.Join(err, unseen(tx, first))
					}
					return err
				}}, taker(42)
				together(t, under, l, a, b)
				ok(t, where+": who came after", b.err)
				n--
				switch done := where == "before it" && first == ""; {
				case done:
					ok(t, where, a.err)
					n--
				case a.err == nil || errors.Is(a.err, gormlock.ErrCommitUnknown) != (first != ""):
					t.Errorf("%s, after %q: %v", where, first, a.err)
				}
				if first != "" {
					n--
					ok(t, "DROP", admin.Exec("DROP TABLE ended").Error)
				}
				wantLeft(t, db, 42, n)
			}
		}
		before := p.blocks.Load()
		together(t, under, l, taker(42), taker(42), taker(42))
		if got := p.blocks.Load() - before; got != 2 {
			t.Errorf("after a KILL %d blocks between three turns, want 2", got)
		}
	})
}
