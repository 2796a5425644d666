package gormlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/testutil/backendtest"
)

// TestGrouped_SeesWhatWasCommittedBeforeItCame: on MariaDB and MySQL a transaction reads what was
// there at its first read. A caller that comes after that read is in the next group. If nothing was
// read, as by Decrement, both are in one group. On PostgreSQL they always are.
func TestGrouped_SeesWhatWasCommittedBeforeItCame(t *testing.T) {
	t.Parallel()
	writes := map[string]func(tx *gorm.DB) error{
		"Decrement": func(tx *gorm.DB) error { return decrement(tx.Model(&Stock{}).Where("sku = ?", 42), "left", 1) },
		"raw": func(tx *gorm.DB) error {
			return errors.Join(take(tx, 42), tx.Exec("\n\tupdate stocks SET name = 'raw' WHERE sku = 42").Error)
		},
	}
	reads := map[string]func(tx *gorm.DB) error{
		"Decrement": writes["Decrement"], "raw": writes["raw"],
		"Take": func(tx *gorm.DB) error {
			return errors.Join(tx.Take(&Stock{}, "sku = ?", 42).Error, take(tx, 42))
		},
		"Row":  func(tx *gorm.DB) error { return errors.Join(tx.Raw("(SELECT 1)").Row().Scan(new(int)), take(tx, 42)) },
		"Exec": func(tx *gorm.DB) error { return errors.Join(tx.Exec("select * from stocks").Error, take(tx, 42)) },
	}
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		if db.Name() == "sqlite" {
			return // where nobody else commits while these are at work
		}
		put(t, db, 42, 100)
		gormlock.SetGroupTimes(db, time.Minute, 0)
		n, sku := int64(100), 100
		for name, first := range reads {
			sku++
			at, goOn := make(chan struct{}), make(chan struct{})
			var all sync.WaitGroup
			all.Go(func() {
				ok(t, name, gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
					err := first(tx)
					close(at)
					<-goOn
					if writes[name] == nil { // a later read does not see more
						err = errors.Join(err, tx.Find(&[]Stock{}).Error)
					}
					return err
				}, gormlock.Grouped(8), gormlock.WithWait(time.Minute)))
			})
			<-at
			put(t, db, sku, 1)
			all.Go(func() {
				ok(t, name+": who came later", gormlock.Transaction(db, "k", func(tx *gorm.DB) error {
					together := left(t, db, 42) == n // outside, what the first one did is not committed
					if want := writes[name] != nil || db.Name() == "postgres"; together != want {
						t.Errorf("%q: in one group %v, want %v", name, together, want)
					}
					return errors.Join(take(tx, 42), tx.Take(&Stock{}, "sku = ?", sku).Error)
				}, gormlock.Grouped(8), gormlock.WithWait(time.Minute)))
			})
			eventually(t, "it waits", func() bool { return gormlock.Waiting(db) == 1 })
			close(goOn)
			all.Wait()
			n -= 2
			wantLeft(t, db, 42, n)
		}
	})
}

// TestGrouped_NoConnection: who waits while its group has no connection leaves when its time or its context ends.
func TestGrouped_NoConnection(t *testing.T) {
	t.Parallel()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		put(t, db, 42, 10)
		pool(t, db).SetMaxOpenConns(1)
		conn, err := pool(t, db).Conn(t.Context())
		ok(t, "Conn", err)
		call := func(ctx context.Context, wait time.Duration) error {
			return gormlock.Transaction(db.WithContext(ctx), "k", taker(42).fn, gormlock.Grouped(8), gormlock.WithWait(wait))
		}
		for ended, waits := range map[error]func(soon time.Duration) error{
			context.DeadlineExceeded: func(soon time.Duration) error { return call(t.Context(), soon) },
			context.Canceled: func(soon time.Duration) error {
				ctx, cancel := context.WithCancel(t.Context())
				defer time.AfterFunc(soon, cancel).Stop()
				return call(ctx, time.Minute)
			},
		} {
			start, err := time.Now(), error(core.ErrTaken)
			for soon := time.Second; errors.Is(err, core.ErrTaken) && soon < 20*time.Second; soon *= 4 { // or it came before the lock's grant
				start, err = time.Now(), waits(soon)
			}
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("it took %v", took)
			}
			want(t, "what it waited for", says(err, "waits for a connection", ended), ended)
			want(t, "what it waited for", err, ended)
			if errors.Is(err, core.ErrTaken) {
				t.Errorf("nobody else has the key: %v", err)
			}
		}
		eventually(t, "the key is free", func() bool { return !held(t, l, "k") })

		for limit := 100 * time.Millisecond; ; limit *= 4 { // a busy machine may need it all before the BEGIN
			gormlock.SetGroupTimes(db, 0, limit)
			err = call(t.Context(), time.Minute)
			if errors.Is(err, context.Canceled) || errors.Is(err, gormlock.ErrCommitUnknown) {
				t.Errorf("no connection for as long as a group lasts: %v", err)
			}
			if strings.Contains(fmt.Sprint(err), fmt.Sprintf("more than %v: there was no connection", limit)) {
				break
			}
			if limit > 5*time.Second {
				t.Fatalf("no connection for as long as a group lasts: %v", err)
			}
		}

		gormlock.SetGroupTimes(db, 0, time.Minute)
		errs := make(chan error, 8)
		for range cap(errs) {
			go func() { errs <- call(context.Background(), time.Minute) }()
		}
		eventually(t, "all wait", func() bool { return gormlock.Waiting(db) == cap(errs) && held(t, l, "k") })
		time.Sleep(150 * time.Millisecond) // longer than a group is open
		ok(t, "Close", conn.Close())
		for range cap(errs) {
			ok(t, "with a connection", <-errs)
		}
		wantLeft(t, db, 42, 2)
	})
}

// failsOnce is a pool whose first BEGIN fails.
type failsOnce struct {
	*sql.DB
	err  error
	done atomic.Bool
}

func (f *failsOnce) BeginTx(ctx context.Context, opts *sql.TxOptions) (gorm.ConnPool, error) {
	if !f.done.Swap(true) {
		return nil, f.err
	}
	return f.DB.BeginTx(ctx, opts)
}

func (f *failsOnce) GetDBConn() (*sql.DB, error) { return f.DB, nil }

// TestGrouped_BeginFails: one of the waiters gets the error, and the others are in the next group.
func TestGrouped_BeginFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	each(t, func(t *testing.T, db *gorm.DB) {
		put(t, db, 42, 10)
		putUnder(db, &failsOnce{DB: pool(t, db), err: broken})
		l := locker(t, backendtest.Memory())
		ok(t, "Use", db.Use(gormlock.New(l)))
		a, b := taker(42), taker(42)
		together(t, db, l, a, b)
		want(t, "first", a.err, broken)
		ok(t, "the other", b.err)
		wantLeft(t, db, 42, 9)
	})
}
