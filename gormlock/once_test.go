package gormlock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/internal/claim"
	"github.com/onelane/onelane/testutil/backendtest"
)

type receipt struct {
	Number int64
	Note   string
	Secret string `json:"-"`
}

// charge is the effect that must happen once: an order for each run.
func charge(tx *gorm.DB) (receipt, error) {
	item := Item{StockID: 1, Name: "order"}
	err := tx.Create(&item).Error
	return receipt{int64(item.ID), "thanks", "not stored"}, err
}

func orders(t testing.TB, db *gorm.DB) int64 {
	t.Helper()
	var n int64
	ok(t, "Count", db.Session(&gorm.Session{NewDB: true, Context: context.Background()}).Model(&Item{}).Count(&n).Error)
	return n
}

// onceDB is a database with the tables and a stock for the orders.
func onceDB(t *testing.T, fn func(t *testing.T, db *gorm.DB, l *core.Locker), opts ...gorm.Option) {
	t.Helper()
	guarded(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		ok(t, "Migrate", gormlock.Migrate(db))
		put(t, db, 42, 10)
		fn(t, db, l)
	}, opts...)
}

func TestOnce_RepeatsGetTheFirstResult(t *testing.T) {
	t.Parallel()
	onceDB(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		first, err := gormlock.Once(t.Context(), db, "pay:1", charge)
		ok(t, "Once", err)
		if first.Number == 0 || first.Note != "thanks" || first.Secret != "" {
			t.Errorf("the first caller got %+v, want what is stored", first)
		}
		for range 3 {
			again, err := gormlock.Once(t.Context(), db, "pay:1", func(*gorm.DB) (receipt, error) {
				t.Error("a repeat ran the function")
				return receipt{}, nil
			})
			ok(t, "Once again", err)
			if again != first {
				t.Errorf("a repeat got %+v, want %+v", again, first)
			}
		}
		for _, other := range []string{"pay:2", "PAY:1", "pay:1 ", "ｐay:1"} {
			_, err = gormlock.Once(t.Context(), db, other, charge)
			ok(t, other, err)
		}
		if n := orders(t, db); n != 5 {
			t.Errorf("%d orders, want 5", n)
		}
		_, err = gormlock.Once(t.Context(), db, "nil", func(tx *gorm.DB) (*receipt, error) { return nil, nil })
		ok(t, "a nil result", err)
		nothing, err := gormlock.Once(t.Context(), db, "nil", func(tx *gorm.DB) (*receipt, error) { return &receipt{}, nil })
		if ok(t, "a nil result again", err); nothing != nil {
			t.Errorf("got %+v, want nil", nothing)
		}
		wantIdle(t, db, l, "pay:1", "nil")
	})
}

func TestOnce_FailuresStoreNothing(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	onceDB(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		fails := map[string]func() error{
			"an error": func() error {
				_, err := gormlock.Once(t.Context(), db, "k", func(tx *gorm.DB) (receipt, error) {
					r, err := charge(tx)
					return r, errors.Join(err, boom)
				})
				return err
			},
			"a panic": func() (err error) {
				defer func() { err, _ = recover().(error) }()
				_, err = gormlock.Once(t.Context(), db, "k", func(tx *gorm.DB) (receipt, error) {
					_, _ = charge(tx)
					panic(boom)
				})
				return err
			},
			"the end of its goroutine": func() (err error) {
				done := make(chan struct{})
				go func() {
					defer close(done)
					_, err = gormlock.Once(t.Context(), db, "k", func(tx *gorm.DB) (receipt, error) {
						_, _ = charge(tx)
						err = boom
						runtime.Goexit()
						return receipt{}, nil
					})
				}()
				<-done
				return err
			},
			"a context that ends inside": func() error {
				ctx, cancel := context.WithCancelCause(t.Context())
				_, err := gormlock.Once(ctx, db, "k", func(tx *gorm.DB) (receipt, error) {
					r, err := charge(tx)
					cancel(nil)
					return r, err
				})
				if !errors.Is(err, context.Canceled) {
					return err
				}
				return boom
			},
			"no JSON": func() error {
				_, err := gormlock.Once(t.Context(), db, "k", func(tx *gorm.DB) (float64, error) {
					_, err := charge(tx)
					return math.NaN(), err
				})
				return says(err, "cannot be stored", boom)
			},
			"one-way JSON": func() error {
				_, err := gormlock.Once(t.Context(), db, "k", func(tx *gorm.DB) (fmt.Stringer, error) {
					_, err := charge(tx)
					return time.Second, err
				})
				return says(err, "cannot be read back", boom)
			},
			"too large": func() error {
				_, err := gormlock.Once(t.Context(), db, "k", func(tx *gorm.DB) (string, error) {
					_, err := charge(tx)
					return strings.Repeat("x", 17<<20), err
				})
				return says(err, "too large", boom)
			},
			"ended inside": func() error {
				_, err := gormlock.Once(t.Context(), db, "k", func(tx *gorm.DB) (receipt, error) {
					r, err := charge(tx)
					return r, errors.Join(err, tx.Rollback().Error)
				})
				if err == nil {
					return errors.New("no error")
				}
				return boom
			},
			"rolled back inside by SQL": func() error {
				_, err := gormlock.Once(t.Context(), db, "k", func(tx *gorm.DB) (receipt, error) {
					r, err := charge(tx)
					return r, errors.Join(err, tx.Exec("ROLLBACK").Error)
				})
				return says(err, "would not be guarded", boom)
			},
		}
		for name, fail := range fails {
			want(t, name, fail(), boom)
			if n := orders(t, db); n != 0 {
				t.Fatalf("%s: %d orders", name, n)
			}
			wantIdle(t, db, l, "k")
		}
		_, err := gormlock.Once(t.Context(), db, "k", charge)
		ok(t, "Once", err)
	})
}

// TestOnce_AtMostOnce is invariant I6: many at once, in several processes whose locks are all granted, as after a
// fail-over of Redis; the first ones fail.
func TestOnce_AtMostOnce(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		ok(t, "Migrate", gormlock.Migrate(db))
		put(t, db, 42, 10)
		pool(t, db).SetMaxOpenConns(30)
		processes := make([]*gorm.DB, 6)
		for i := range processes {
			processes[i] = holder(t, db, uint64(i+1))
		}
		for round := range 5 {
			key, runs, results := fmt.Sprintf("pay:%d", round), atomic.Int64{}, sync.Map{}
			var inside atomic.Int64
			boom := errors.New("boom")
			var all sync.WaitGroup
			for range 3 {
				for _, p := range processes {
					all.Go(func() {
						for {
							r, err := gormlock.Once(t.Context(), p, key, func(tx *gorm.DB) (receipt, error) {
								if n := inside.Add(1); n != 1 { // the row comes first, so the database lets one in
									t.Errorf("%d run at a time", n)
								}
								defer inside.Add(-1)
								r, err := charge(tx)
								if err == nil && runs.Add(1) <= 3 { // while others wait
									time.Sleep(10 * time.Millisecond)
									err = boom
								}
								return r, err
							})
							if errors.Is(err, boom) {
								continue
							}
							if err != nil {
								t.Errorf("Once: %v", err)
							}
							results.Store(r, true)
							return
						}
					})
				}
			}
			all.Wait()
			distinct := 0
			results.Range(func(any, any) bool { distinct++; return true })
			if n := orders(t, db); n != int64(round+1) || distinct != 1 || runs.Load() < 4 {
				t.Fatalf("round %d: %d orders, %d results, %d runs", round, n, distinct, runs.Load())
			}
		}
	})
}

func TestOnce_Fingerprint(t *testing.T) {
	t.Parallel()
	onceDB(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		amount := func(parts ...string) gormlock.TransactionOption {
			var bs [][]byte
			for _, p := range parts {
				bs = append(bs, []byte(p))
			}
			return gormlock.Fingerprint(bs...)
		}
		first, err := gormlock.Once(t.Context(), db, "k", charge, amount("10", "EUR"))
		ok(t, "Once", err)
		again, err := gormlock.Once(t.Context(), db, "k", charge, amount("10", "EUR"))
		if ok(t, "Once again", err); again != first {
			t.Errorf("got %+v, want %+v", again, first)
		}
		for _, other := range []gormlock.TransactionOption{amount("11", "EUR"), amount("10E", "UR"), amount("")} {
			_, err = gormlock.Once(t.Context(), db, "k", charge, other)
			want(t, "another fingerprint", err, gormlock.ErrMismatch)
			if strings.Count(err.Error(), "gormlock: Once") != 1 {
				t.Errorf("%v: it says twice whose error it is", err)
			}
			if !strings.Contains(err.Error(), `"k"`) {
				t.Errorf("%v does not name the key", err)
			}
		}
		_, err = gormlock.Once(t.Context(), db, "k", charge)
		ok(t, "without one", err)
		var stored []byte
		ok(t, "Row", db.Raw("SELECT fingerprint FROM onelane_once").Row().Scan(&stored))
		digest := claim.Digest([]byte("10"), []byte("EUR"))
		if len(stored) < 32 || bytes.Contains(stored, digest[:]) {
			t.Error("the fingerprint is stored as it is")
		}
	})
}

func TestOnce_Refusals(t *testing.T) {
	t.Parallel()
	onceDB(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		never := func(*gorm.DB) (int, error) { return 0, errors.New("it ran") }
		once := func(db *gorm.DB, key string, opts ...gormlock.TransactionOption) error {
			_, err := gormlock.Once(t.Context(), db, key, never, opts...)
			return err
		}
		want(t, "in a transaction", db.Transaction(func(tx *gorm.DB) error { return once(tx, "k") }), gormlock.ErrGuardTooLate)
		empty := once(db, gormlock.ClaimKey(t.Context(), "pay"))
		want(t, "an empty key", empty, core.ErrInvalidKey)
		if !strings.Contains(empty.Error(), "c.Request.Context()") {
			t.Errorf("%v: it must say which context has a claim in Gin", empty)
		}
		want(t, "a long key", once(db, strings.Repeat("k", 513)), core.ErrInvalidKey)
		want(t, "a control character", once(db, "a\nb"), core.ErrInvalidKey)
		want(t, "DryRun", once(db.Session(&gorm.Session{DryRun: true}), "k"), gorm.ErrDryRunModeUnsupported)
		want(t, "no plugin", once(reopen(t, db), "k"), gormlock.ErrNotRegistered)
		if err := once(db, "k", gormlock.WithWait(-1)); err == nil || !strings.Contains(err.Error(), "WithWait") {
			t.Errorf("a bad wait: %v", err)
		}
		ok(t, "DROP", db.Exec("DROP TABLE onelane_once").Error)
		if err := once(db, "k"); err == nil || !strings.Contains(err.Error(), "gormlock.Migrate") {
			t.Errorf("no table: got %v, want an error that says what makes it", err)
		}
	})
}

// TestOnce_WithoutTheLock: without the lock, a key that is done is answered, and another does not
// run.
func TestOnce_WithoutTheLock(t *testing.T) {
	t.Parallel()
	onceDB(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		first, err := gormlock.Once(t.Context(), db, "done", charge)
		ok(t, "Once", err)
		never := func(*gorm.DB) (receipt, error) { return receipt{}, errors.New("it ran") }
		check := func(what string, db *gorm.DB, target error) {
			t.Helper()
			again, err := gormlock.Once(t.Context(), db, "done", never, gormlock.WithWait(50*time.Millisecond))
			if ok(t, what, err); again != first {
				t.Errorf("%s: got %+v, want %+v", what, again, first)
			}
			for wait := 50 * time.Millisecond; wait < 10*time.Second; wait *= 4 { // the machine may be too busy to ask at all
				if _, err = gormlock.Once(t.Context(), db, "new", never, gormlock.WithWait(wait)); errors.Is(err, target) {
					break
				}
			}
			want(t, what, err, target)
		}
		for _, key := range []string{"done", "new"} {
			_, err := l.Acquire(t.Context(), key)
			ok(t, "Acquire", err)
		}
		check("held by another", db, core.ErrTaken)

		down := reopen(t, db)
		away := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		t.Cleanup(func() { _ = away.Close() })
		ok(t, "Use", down.Use(gormlock.New(locker(t, redisbackend.New(away)))))
		check("Redis is down", down, core.ErrUnavailable)

		ok(t, "DROP", db.Exec("DROP TABLE onelane_once").Error)
		_, err = gormlock.Once(t.Context(), db, "done", never, gormlock.WithWait(50*time.Millisecond))
		want(t, "nor can it be looked up", says(err, "onelane_once", err), core.ErrTaken)
	})
}

// TestOnce_Unfinished: a run that was committed in its middle does not run again.
func TestOnce_Unfinished(t *testing.T) {
	t.Parallel()
	onceDB(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		_, err := gormlock.Once(t.Context(), db, "k", charge)
		ok(t, "Once", err)
		ok(t, "Exec", db.Exec("UPDATE onelane_once SET result = NULL").Error)
		_, err = gormlock.Once(t.Context(), db, "k", charge)
		want(t, "Once", err, gormlock.ErrUnfinished)
		if n := orders(t, db); n != 1 {
			t.Errorf("%d orders", n)
		}
	})
}

// TestOnce_Deadlock: two runs lock rows in opposite order; the one that the database ends is run again. One that hides
// the deadlock from Once stores nothing, and nothing that it did after it.
func TestOnce_Deadlock(t *testing.T) {
	t.Parallel()
	onceDB(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		if db.Name() == "sqlite" { // has one writer, and so no deadlock
			return
		}
		put(t, db, 43, 10)
		for _, hide := range []bool{false, true} {
			var both sync.WaitGroup
			both.Add(2)
			meet := [2]sync.Once{}
			var all sync.WaitGroup
			errs := make([]error, 2)
			before := orders(t, db)
			for i, skus := range [][]int{{42, 43}, {43, 42}} {
				all.Go(func() {
					_, errs[i] = gormlock.Once(t.Context(), db, fmt.Sprintf("%v:%d", hide, i), func(tx *gorm.DB) (receipt, error) {
						if err := take(tx, skus[0]); err != nil {
							return receipt{}, err
						}
						meet[i].Do(func() { both.Done(); both.Wait() })
						if err := take(tx, skus[1]); err != nil && !hide {
							return receipt{}, err
						}
						return charge(tx)
					})
				})
			}
			all.Wait()
			done, failed := orders(t, db)-before, 0
			for _, err := range errs {
				if err != nil {
					failed++
				}
			}
			if !hide && failed != 0 || done != int64(2-failed) {
				t.Errorf("hidden %v: %d orders, errors %v", hide, done, errs)
			}
		}
	})
}

func TestClaimKey(t *testing.T) {
	t.Parallel()
	claims := claim.New(locker(t, backendtest.Memory()), "", claim.DefaultSettings())
	key := func(request, name string) string {
		got, err := claims.Begin(t.Context(), claim.Request{Key: request})
		ok(t, "Begin", err)
		run := got.Claim
		defer run.Close()
		defer func() { ok(t, "Free", run.Free()) }()
		return gormlock.ClaimKey(run.Context(), name)
	}
	long := strings.Repeat("k", 450)
	seen := map[string]bool{"": true}
	for _, c := range [][2]string{{"a", "b"}, {"b", "a"}, {"a:b", ""}, {"a", "b:"}, {long + ":::::::::::::::::::::::::", "b"},
		{long + "::::::::::::::::::::::::;", "b"}, {"sha256:x", "b"}} {
		k := key(c[0], c[1])
		if seen[k] || len(k) > 512 {
			t.Errorf("%q: key %q is another's, or too long", c, k)
		}
		if seen[k] = true; key(c[0], c[1]) != k {
			t.Errorf("%q: another key the second time", c)
		}
	}
	if k := gormlock.ClaimKey(t.Context(), "pay"); k != "" {
		t.Errorf("without a claim: %q", k)
	}
}

// says returns then if the text of err has what in it.
func says(err error, what string, then error) error {
	if err == nil || !strings.Contains(err.Error(), what) {
		return fmt.Errorf("got %w, want an error that says %q", err, what)
	}
	return then
}

// A fingerprint of nothing is the same for all calls. It would also hide that of ClaimKey.
func TestFingerprint_OfNothing(t *testing.T) {
	t.Parallel()
	onceDB(t, func(t *testing.T, db *gorm.DB, _ *core.Locker) {
		var parts [][]byte // of a request that has none of the fields
		_, err := gormlock.Once(t.Context(), db, "pay:1", charge, gormlock.Fingerprint(parts...))
		if err == nil || !strings.Contains(err.Error(), "Fingerprint()") {
			t.Errorf("Once: %v, want an error that says Fingerprint", err)
		}
		if n := orders(t, db); n != 0 {
			t.Errorf("%d orders", n)
		}
	})
}
