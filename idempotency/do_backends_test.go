package idempotency_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/etcdbackend"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/core/sqlbackend"
	"github.com/onelane/onelane/core/zkbackend"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
)

// sealers calls fn for each backend that keeps records.
func sealers(t *testing.T, fn func(t *testing.T, b core.Opener)) {
	const patient = 10 * time.Second // the machine may be busy
	for name, open := range map[string]func(t *testing.T) core.Opener{
		"Redis": func(t *testing.T) core.Opener {
			b := redisbackend.New(testutil.Redis(t).Client())
			b.NodeTimeout = patient
			return b
		},
		"etcd": func(t *testing.T) core.Opener {
			if etcd := testutil.Etcd(t); etcd != nil {
				return etcdbackend.New(etcd.Client(), etcdbackend.WithTimeout(patient))
			}
			return nil
		},
		"ZooKeeper": func(t *testing.T) core.Opener {
			if node := testutil.ZooKeeper(t); node != nil {
				return zkbackend.New([]string{node.Addr()}, zkbackend.WithTimeout(patient))
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if b := open(t); b != nil {
				fn(t, b)
			}
		})
	}
	t.Run("table", func(t *testing.T) {
		t.Parallel()
		testutil.Databases(t, func(t *testing.T, db *gorm.DB) {
			conns, err := db.DB()
			check.OK(t, "DB", err)
			check.OK(t, "Migrate", sqlbackend.Migrate(t.Context(), conns))
			fn(t, sqlbackend.New(conns, sqlbackend.WithTimeout(time.Minute)))
		})
	})
}

// On each backend that keeps records, many processes with one key have one effect, and all that do
// not wait in vain get its result.
func TestDo_Backends(t *testing.T) {
	t.Parallel()
	sealers(t, func(t *testing.T, b core.Opener) {
		var runs atomic.Int64
		charge := func(l *core.Locker, payload string, opts ...idempotency.DoOption) (receipt, error) {
			opts = append(opts, idempotency.Retain(time.Hour), idempotency.Payload([]byte(payload)))
			return idempotency.Do(t.Context(), l, "charge:42", func(context.Context) (receipt, error) {
				time.Sleep(20 * time.Millisecond)
				return receipt{ID: "c1", Cents: runs.Add(1)}, nil
			}, opts...)
		}
		lockers := []*core.Locker{check.Locker(t, b), check.Locker(t, b), check.Locker(t, b)}
		var all sync.WaitGroup
		for i := range 12 {
			all.Go(func() {
				if got, err := charge(lockers[i%len(lockers)], "700", idempotency.Wait(check.Patience)); err != nil || got.Cents != 1 {
					t.Errorf("caller %d: %+v, %v", i, got, err)
				}
			})
		}
		all.Wait()
		_, err := charge(lockers[0], "900")
		check.Want(t, "another payload", err, idempotency.ErrMismatch)
		failed := errors.New("failed")
		for i := range 2 {
			_, err := idempotency.Do(t.Context(), lockers[i], "mail:42", func(context.Context) (int, error) {
				runs.Add(1)
				return 0, failed
			}, idempotency.Retain(time.Hour), idempotency.Wait(check.Patience))
			check.Want(t, "a call that failed", err, idempotency.ErrUnknown)
		}
		if n := runs.Load(); n != 2 {
			t.Errorf("the functions ran %d times, want 2", n)
		}
	})
}
