package gormlock_test

import (
	"context"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/internal/claim"
	"github.com/onelane/onelane/testutil/backendtest"
)

// underClaim runs fn in the context of a claim, which is free after it.
func underClaim(t *testing.T, l *core.Locker, req claim.Request, fn func(ctx context.Context)) {
	t.Helper()
	got, err := claim.New(l, "", claim.DefaultSettings()).Begin(t.Context(), req)
	ok(t, "Begin", err)
	defer got.Claim.Close()
	fn(got.Claim.Context())
	ok(t, "Free", got.Claim.Free())
}

// A key that comes with another payload, or from another caller, does not get the stored result.
func TestOnce_AnotherRequestWithTheKey(t *testing.T) {
	t.Parallel()
	onceDB(t, func(t *testing.T, db *gorm.DB, l *core.Locker) {
		request := func(key, payload, credentials string) claim.Request {
			return claim.Request{Key: key, Fingerprint: claim.Fingerprint{
				Payload: claim.Digest([]byte(payload)), Credentials: claim.Digest([]byte(credentials)),
			}}
		}
		once := func(req claim.Request, name string, opts ...gormlock.TransactionOption) (result receipt, err error) {
			underClaim(t, l, req, func(ctx context.Context) {
				result, err = gormlock.Once(ctx, db, gormlock.ClaimKey(ctx, name), charge, opts...)
			})
			return result, err
		}
		for _, key := range []string{"k", "a:b", strings.Repeat("k", 450) + strings.Repeat(":", 40)} {
			for _, name := range []string{"pay", "pay:100%"} {
				first, err := once(request(key, "10 EUR", "ann"), name)
				ok(t, "Once", err)
				again, err := once(request(key, "10 EUR", "ann"), name)
				if ok(t, "Once again", err); again != first {
					t.Errorf("got %+v, want %+v", again, first)
				}
				_, err = once(request(key, "20 EUR", "ann"), name)
				want(t, "another payload", err, gormlock.ErrMismatch)
				_, err = once(request(key, "10 EUR", "bob"), name)
				want(t, "another caller", err, gormlock.ErrMismatch)
			}
		}
		// The application compares by itself.
		first, err := once(request("own", "10 EUR", "ann"), "pay", gormlock.Fingerprint([]byte("10")))
		ok(t, "Once with a fingerprint", err)
		again, err := once(request("own", "10.00 EUR", "ann"), "pay", gormlock.Fingerprint([]byte("10")))
		if ok(t, "Once with its fingerprint", err); again != first {
			t.Errorf("got %+v, want %+v", again, first)
		}
		// A key that is not the claim's does not belong to its request.
		for _, payload := range []string{"10 EUR", "20 EUR"} {
			underClaim(t, l, request("k", payload, "ann"), func(ctx context.Context) {
				_, err := gormlock.Once(ctx, db, "order-7", charge)
				ok(t, "Once with another key", err)
			})
		}
	})
}

// Two services with a prefix each may share a database.
func TestClaimKey_TwoPrefixes(t *testing.T) {
	t.Parallel()
	keys := make(map[string]bool)
	for _, prefix := range []string{"shop:", "bank:", ""} {
		l, err := core.New(backendtest.Memory(), core.WithPrefix(prefix))
		ok(t, "New", err)
		t.Cleanup(func() { _ = l.Close() })
		underClaim(t, l, claim.Request{Key: "k"}, func(ctx context.Context) { keys[gormlock.ClaimKey(ctx, "pay")] = true })
	}
	if len(keys) != 3 {
		t.Errorf("the keys are %v", keys)
	}
}

// A claim takes each key: core gets a hash of one that it would refuse. The key of Once is the key of
// a lock, too, so ClaimKey must do the same. Braces are frequent: net/http writes them into patterns,
// and ByKey into its templates. docs/migration.md tells users of redsync to set WithPrefix("").
func TestClaimKey_TextThatCoreRefuses(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *gorm.DB) {
		l := locker(t, backendtest.Memory(), core.WithPrefix(""))
		ok(t, "Use", db.Use(gormlock.New(l)))
		ok(t, "Migrate", gormlock.Migrate(db))
		put(t, db, 42, 10)
		keys := []string{
			core.Join("", "ann", "POST", "shop", "POST /orders/{id}/pay", "Idempotency-Key", "k1"),
			core.Join("", "ann", "POST", "shop", "/pay", "key {json.order.id}", "7"),
			core.Join("", "ann", "POST", "shop", "/pay", "Idempotency-Key", "{k2}"),
			core.Join("", "J\xfcrgen", "POST", "shop", "/pay", "Idempotency-Key", "k3"), // not UTF-8
		}
		for _, key := range keys {
			for range 2 { // the second one gets the first result
				underClaim(t, l, claim.Request{Key: key}, func(ctx context.Context) {
					_, err := gormlock.Once(ctx, db, gormlock.ClaimKey(ctx, "pay"), charge)
					ok(t, "Once under the claim "+key, err)
				})
			}
		}
		if n := orders(t, db); n != int64(len(keys)) {
			t.Errorf("%d orders, want %d", n, len(keys))
		}
	})
}
