package main

import (
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/internal/claim"
	"github.com/onelane/onelane/testutil"
)

// The log may name a claim without claim:. onelanectl finds it with and without, even if the key is
// longer than that of a lock, and a lock of that name comes first.
func TestClaims_KeyWithoutPrefix(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	locker := must[*core.Locker](t)(core.New(on(node.Client()), core.WithTTL(5*time.Second)))
	defer locker.Close()
	do := func(wantCode int, args ...string) (string, string) {
		return ctl(t, wantCode, append(args, "-redis", node.Addr())...)
	}
	c := claim.New(locker, "http", claim.DefaultSettings())
	for _, key := range []string{"shop:ann:1", "shop:" + strings.Repeat("x", 600), "shop:\n1"} {
		out := must[claim.Outcome](t)(c.Begin(t.Context(), claim.Request{Key: key, ID: "request-7"}))
		defer out.Claim.Close()
		out.Claim.LeaveUnknown()
		check.Eventually(t, "the orphan", func() bool {
			st, err := locker.Inspect(t.Context(), claim.LockKey(locker, claim.KeyPrefix, key))
			return err == nil && st.Status == core.Orphaned
		})
		for _, said := range []string{key, claim.KeyPrefix + key} {
			shown, _ := do(0, "inspect", said)
			contains(t, shown, "claim:shop:", "orphaned", "request-7")
		}
	}
	out, _ := do(0, "unseal", "shop:ann:1")
	contains(t, out, "unsealed claim:shop:ann:1")
	do(1, "unseal", "shop:ann:1")

	k := must[*core.Lock](t)(locker.Acquire(t.Context(), "shop:"+strings.Repeat("y", 10)))
	out, _ = do(0, "inspect", k.Key())
	contains(t, out, "held")
	if strings.Contains(out, "claim:") {
		t.Errorf("inspect of a lock shows %q", out)
	}
	if err := k.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// inspect of a key that is free, or of a name with a typing error, says so and exits with 1.
func TestInspect_FreeKey(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	for _, key := range []string{"nobody", "claim:nobody", "claimstep:nobody:charge"} {
		out, errs := ctl(t, 1, "inspect", key, "-redis", node.Addr())
		contains(t, out, "status", "free", key)
		contains(t, errs, key, "there is nothing under this key")
		out, _ = ctl(t, 1, "-json", "inspect", key, "-redis", node.Addr())
		contains(t, out, `"status":"free"`)
	}
}
