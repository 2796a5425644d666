package redisbackend_test

import (
	"errors"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

func TestOrphan_OnOneServer(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	for name, b := range map[string]core.Backend{"client": open(t, one(node.Client())), "pool": open(t, pooled(node.Pool()))} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := "{" + name + "}"
			request := core.Request{Key: key, Owner: "b/2;3600000", TTL: time.Minute, Orphan: time.Hour}
			before := time.Now()
			g := orphanOf(t, b, key)
			for _, token := range []bool{false, true} {
				q := request
				q.Token = token
				_, err := b.Acquire(t.Context(), q)
				var orphaned *core.OrphanedError
				if !errors.As(err, &orphaned) || orphaned.Owner != g.Owner {
					t.Fatalf("Acquire of an orphan: %v", err)
				}
				if orphaned.Since.Before(before) || orphaned.Since.After(time.Now().Add(time.Second)) {
					t.Errorf("orphaned since %v, %v ago", orphaned.Since, time.Since(orphaned.Since))
				}
			}
			_, err := b.Extend(t.Context(), g, time.Minute)
			want(t, "Extend of one's own orphan", err, core.ErrLost)
			_, err = b.Mint(t.Context(), g)
			want(t, "Mint for one's own orphan", err, core.ErrLost)

			adopt := request
			adopt.Adopt = "another/1;3600000"
			_, err = b.Acquire(t.Context(), adopt)
			want(t, "Acquire that adopts another orphan", err, core.ErrOrphaned)
			adopt.Adopt, adopt.Token = g.Owner, true
			adopted, err := b.Acquire(t.Context(), adopt)
			ok(t, "Acquire that adopts the orphan", err)
			if adopted.Token == 0 || adopted.Owner != adopt.Owner {
				t.Errorf("adopted as %+v", adopted)
			}
			again := request
			again.Owner, again.Adopt = "c/3", g.Owner
			_, err = b.Acquire(t.Context(), again)
			want(t, "Acquire that adopts what is adopted", err, core.ErrTaken)
			want(t, "Seal over what is adopted", b.Seal(t.Context(), g, nil, time.Minute), core.ErrLost)
			_, err = b.Release(t.Context(), g)
			want(t, "Release of what is adopted", err, core.ErrLost)
			_, err = b.Release(t.Context(), adopted)
			ok(t, "Release of the adopted key", err)
		})
	}
}

func TestOrphan_HeldIsNotFreed(t *testing.T) {
	t.Parallel()
	b := open(t, one(testutil.Redis(t).Client()))
	q := core.Request{Key: "{k}", Owner: "a/1;3600000", TTL: time.Minute, Orphan: time.Hour}
	g, err := b.Acquire(t.Context(), q)
	ok(t, "Acquire", err)
	ok(t, "Unseal of a held key", b.Unseal(t.Context(), "{k}"))
	st, err := b.Inspect(t.Context(), "{k}")
	if err != nil || st.Status != core.Held || st.ExpiresIn > time.Minute || st.ExpiresIn < 30*time.Second {
		t.Errorf("Inspect = %+v, %v", st, err)
	}
	_, err = b.Acquire(t.Context(), core.Request{Key: "{k}", Owner: "b/2", TTL: time.Minute, Adopt: g.Owner})
	var taken *core.TakenError
	if !errors.As(err, &taken) || taken.RetryAfter > time.Minute || taken.Holder != "a/1" {
		t.Errorf("Acquire that adopts a held key: %v", err)
	}
	g, err = b.Extend(t.Context(), g, 2*time.Minute)
	ok(t, "Extend", err)
	if left := time.Until(g.Deadline); left < time.Minute || left > 2*time.Minute {
		t.Errorf("the lease lasts %v after an Extend by two minutes", left)
	}
	if st, err = b.Inspect(t.Context(), "{k}"); err != nil || st.ExpiresIn < time.Minute || st.ExpiresIn > 2*time.Minute {
		t.Errorf("Inspect = %+v, %v", st, err)
	}
	_, err = b.Release(t.Context(), g)
	ok(t, "Release", err)
}

func TestOrphan_OwnerAndOperator(t *testing.T) {
	t.Parallel()
	b := open(t, one(testutil.Redis(t).Client()))
	_, err := b.Release(t.Context(), orphanOf(t, b, "{released}"))
	ok(t, "Release of one's own orphan", err)
	ok(t, "Seal over one's own orphan", b.Seal(t.Context(), orphanOf(t, b, "{sealed}"), []byte("v"), time.Minute))
	orphanOf(t, b, "{unsealed}")
	ok(t, "Unseal", b.Unseal(t.Context(), "{unsealed}"))
	for key, status := range map[string]core.Status{"{released}": core.Free, "{sealed}": core.Sealed, "{unsealed}": core.Free} {
		if st, err := b.Inspect(t.Context(), key); err != nil || st.Status != status {
			t.Errorf("%s is %v, %v", key, st.Status, err)
		}
	}
}
