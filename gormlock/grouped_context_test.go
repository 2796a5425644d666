package gormlock_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gomysql "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil/backendtest"
)

// A caller's statements carry the values of its own context, as traces need it.
func TestGrouped_ContextValues(t *testing.T) {
	t.Parallel()
	type span struct{}
	each(t, func(t *testing.T, plain *gorm.DB) {
		put(t, plain, 42, 10)
		var mu sync.Mutex
		var spans []any
		r := &relay{primary: pool(t, plain)}
		r.sent = func(ctx context.Context, query string) {
			if strings.HasPrefix(query, "UPDATE") || strings.HasPrefix(query, "SELECT 4") {
				mu.Lock()
				defer mu.Unlock()
				spans = append(spans, ctx.Value(span{}))
			}
		}
		db, l := r.open(t, plain), locker(t, backendtest.Memory())
		ok(t, "Use", db.Use(gormlock.New(l)))
		_, prepared := plain.ConnPool.(*gorm.PreparedStmtDB)
		db = db.Session(&gorm.Session{PrepareStmt: prepared})
		var callers []*caller
		for _, name := range []string{"a", "b", "c"} {
			c := &caller{ctx: context.WithValue(t.Context(), span{}, name)}
			c.fn = func(tx *gorm.DB) error {
				if err := take(tx, 42); err != nil {
					return err
				}
				inner := tx.WithContext(context.WithValue(tx.Statement.Context, span{}, name+"/inner"))
				return inner.Raw("SELECT 4").Scan(new(int)).Error
			}
			callers = append(callers, c)
		}
		together(t, db, l, callers...)
		for _, c := range callers {
			ok(t, "Transaction", c.err)
		}
		if want := []any{"a", "a/inner", "b", "b/inner", "c", "c/inner"}; !slices.Equal(spans, want) {
			t.Errorf("spans %v, want %v", spans, want)
		}
	})
}

// endsLate is a context that has ended when its group's outcome is known.
type endsLate struct {
	context.Context
	returned atomic.Bool   // the caller's function
	outcome  chan struct{} // closed when another caller has the outcome
	ended    chan struct{}
}

func (c *endsLate) Done() <-chan struct{} {
	if !c.returned.Load() {
		return c.Context.Done()
	}
	<-c.outcome
	return c.ended
}

// A caller gets an outcome that is there, also if its context has ended.
func TestGrouped_OutcomeBeforeContext(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 100)
		for range 10 {
			ctx := &endsLate{Context: t.Context(), outcome: make(chan struct{}), ended: make(chan struct{})}
			close(ctx.ended)
			late := &caller{ctx: ctx, fn: func(tx *gorm.DB) error {
				err := take(tx, 42)
				ctx.returned.Store(true)
				return err
			}}
			k, err := l.Acquire(t.Context(), "k")
			ok(t, "Acquire", err)
			gormlock.SetGroupTimes(db, time.Minute, 0)
			var all sync.WaitGroup
			for i, c := range []*caller{late, taker(42)} {
				if c.ctx == nil {
					c.ctx = t.Context()
				}
				all.Go(func() {
					if c != late {
						defer close(ctx.outcome)
					}
					c.err = gormlock.Transaction(db.WithContext(c.ctx), "k", c.fn, gormlock.Grouped(2), gormlock.WithWait(time.Minute))
				})
				eventually(t, "the caller waits", func() bool { return gormlock.Waiting(db) == i+1 })
			}
			ok(t, "Release", k.Release(t.Context()))
			all.Wait()
			ok(t, "Transaction", late.err)
			eventually(t, "the key is free", func() bool { return !held(t, l, "k") })
		}
		wantLeft(t, db, 42, 80)
	})
}

// Statements that the driver sends as one text work in a group too.
func TestGrouped_MultiStatements(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, plain *gorm.DB) {
		if plain.Name() != "mysql" {
			return
		}
		db := openMode(t, plain, func(my *gomysql.Config, _ *pgx.ConnConfig) {
			my.InterpolateParams, my.MultiStatements = true, true
		})
		l := locker(t, backendtest.Memory())
		ok(t, "Use", db.Use(gormlock.New(l)))
		put(t, db, 42, 10)
		c := func() *caller {
			return &caller{fn: func(tx *gorm.DB) error {
				return tx.Exec("UPDATE stocks SET `left` = `left` - ? WHERE sku = ?; UPDATE stocks SET name = ? WHERE sku = ?",
					1, 42, "a;b", 42).Error
			}}
		}
		first, second := c(), c()
		together(t, db, l, first, second)
		ok(t, "the first", first.err)
		ok(t, "the second", second.err)
		wantLeft(t, db, 42, 8)
	})
}
