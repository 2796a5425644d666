package sqlbackend_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/sqlbackend"
	"github.com/onelane/onelane/internal/ownertext"
	"github.com/onelane/onelane/internal/sqlrelay"
)

// An INSERT whose connection broke has its effect after the first clean-up. Without the second one
// the key would be held, and then orphaned for an hour.
func TestLateInsertIsCleanedUp(t *testing.T) {
	t.Parallel()
	databases(t, func(t *testing.T, db *database) {
		db.migrate(t)
		var mu sync.Mutex
		var late func() error
		released := make(chan error, 1)
		network := &sqlrelay.Relay{Primary: db.DB}
		network.Exec = func(query string, args []any, run func() (driver.Result, error)) (driver.Result, error) {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case strings.HasPrefix(query, "INSERT"):
				late = func() error { _, err := network.Primary.Exec(query, args...); return err }
				return nil, errors.New("the connection broke")
			case late != nil && strings.Contains(query, "SET state = 0"):
				result, err := run()
				released <- errors.Join(err, late())
				late = nil
				return result, err
			}
			return run()
		}
		b, err := at(network.Open(t)).Open(core.Environment{Logger: slog.New(slog.DiscardHandler)})
		ok(t, "Open", err)
		r := core.Request{Key: "k", Owner: ownertext.New("i", "", time.Hour), TTL: time.Hour, Orphan: time.Hour}
		_, err = b.Acquire(t.Context(), r)
		want(t, "Acquire", err, core.ErrUnavailable)
		ok(t, "the INSERT", <-released)
		eventually(t, "the key is free", func() bool {
			st, err := b.Inspect(t.Context(), "k")
			return err == nil && st.Status == core.Free
		})
		ok(t, "Close", b.Close())
	})
}

// The answer to the INSERT comes when the lease is over. The orphan is the attempt's own.
func TestLateAnswerLeavesNoOrphan(t *testing.T) {
	t.Parallel()
	databases(t, func(t *testing.T, db *database) {
		db.migrate(t)
		b := open(t, at(db.DB))
		network := &sqlrelay.Relay{Primary: db.DB}
		network.Exec = func(query string, _ []any, run func() (driver.Result, error)) (driver.Result, error) {
			result, err := run()
			if strings.HasPrefix(query, "INSERT") {
				eventually(t, "the lease ended", func() bool {
					st, err := b.Inspect(context.Background(), "k")
					return err == nil && st.Status == core.Orphaned
				})
			}
			return result, err
		}
		slow := open(t, at(network.Open(t)))
		r := core.Request{Key: "k", Owner: ownertext.New("i", "", time.Hour), TTL: 50 * time.Millisecond, Orphan: time.Hour}
		_, err := slow.Acquire(t.Context(), r)
		want(t, "Acquire", err, core.ErrUnavailable)
		eventually(t, "the key is free", func() bool {
			st, err := b.Inspect(t.Context(), "k")
			return err == nil && st.Status == core.Free
		})
	})
}

// Close lets a clean-up that is under way end first.
func TestCloseCleansUp(t *testing.T) {
	t.Parallel()
	databases(t, func(t *testing.T, db *database) {
		db.migrate(t)
		freesOnClose(t, db, func(key string) (began time.Time) {
			network := &sqlrelay.Relay{Primary: db.DB}
			network.Exec = func(query string, _ []any, run func() (driver.Result, error)) (driver.Result, error) {
				result, err := run()
				if strings.HasPrefix(query, "INSERT") {
					return nil, errors.Join(err, errors.New("the answer was lost"))
				}
				return result, err
			}
			l := locker(t, sqlbackend.New(network.Open(t)), core.WithOutageWait(0), core.WithOrphan(time.Hour))
			_, err := l.Acquire(t.Context(), key)
			want(t, "Acquire", err, core.ErrUnavailable)
			began = time.Now()
			ok(t, "Close", l.Close())
			return began
		})
	})
}

// Close lets a call go on that its caller has given up, and then cleans up after it.
func TestCloseAwaitsLateCalls(t *testing.T) {
	t.Parallel()
	databases(t, func(t *testing.T, db *database) {
		db.migrate(t)
		freesOnClose(t, db, func(key string) (began time.Time) {
			ctx, cancel := context.WithCancel(t.Context())
			inserted := make(chan struct{})
			network := &sqlrelay.Relay{Primary: db.DB}
			network.Exec = func(query string, _ []any, run func() (driver.Result, error)) (driver.Result, error) {
				if strings.HasPrefix(query, "INSERT") {
					defer close(inserted)
					cancel()
					time.Sleep(200 * time.Millisecond)
				}
				return run()
			}
			l := locker(t, sqlbackend.New(network.Open(t)), core.WithTTL(time.Hour))
			_, err := l.Acquire(ctx, key)
			want(t, "Acquire", err, context.Canceled)
			began = time.Now()
			ok(t, "Close", l.Close())
			<-inserted
			return began
		})
	})
}

// freesOnClose checks that nobody has a key after a Close, which began then. Close waits for a
// second. On a busy machine that may be too short, so there are ten tries.
func freesOnClose(t *testing.T, db *database, closes func(key string) (began time.Time)) {
	t.Helper()
	for try := range 10 {
		key := fmt.Sprint("k", try)
		began := closes(key)
		took := time.Since(began)
		k, err := locker(t, at(db.DB)).TryAcquire(t.Context(), key)
		if took >= time.Second && errors.Is(err, core.ErrTaken) {
			continue
		}
		ok(t, "Acquire after Close", err)
		ok(t, "Release", k.Release(t.Context()))
		return
	}
	t.Error("Close did not clean up, ten times")
}

// A driver that ignores contexts does not hold up Close.
func TestCloseWhileCleanUpsHang(t *testing.T) {
	t.Parallel()
	databases(t, func(t *testing.T, db *database) {
		db.migrate(t)
		hangs := make(chan struct{})
		network := &sqlrelay.Relay{Primary: db.DB}
		network.Exec = func(query string, _ []any, run func() (driver.Result, error)) (driver.Result, error) {
			if strings.Contains(query, "SET state = 0") {
				<-hangs
			}
			result, err := run()
			if strings.HasPrefix(query, "INSERT") {
				return nil, errors.Join(err, errors.New("the answer was lost"))
			}
			return result, err
		}
		l := locker(t, sqlbackend.New(network.Open(t)), core.WithOutageWait(0))
		t.Cleanup(func() { close(hangs) })
		_, err := l.Acquire(t.Context(), "k")
		want(t, "Acquire", err, core.ErrUnavailable)
		closed := make(chan error, 1)
		go func() { closed <- l.Close() }()
		select {
		case err := <-closed:
			ok(t, "Close", err)
		case <-time.After(10 * time.Second):
			t.Error("Close has not returned after 10s, and its grace is 1s")
		}
	})
}
