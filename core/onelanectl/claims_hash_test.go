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

// The key of a gRPC method is the field document.sha256, and the client sends a hash. The key in
// the log then ends like the key of a lock that is shown with a hash.
func TestClaims_KeyThatEndsWithAHash(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	locker := must[*core.Locker](t)(core.New(on(node.Client()), core.WithTTL(5*time.Second))) // a Begin with a late answer fails
	defer locker.Close()
	key := core.Join("", "ann", "grpc", "/docs.Docs/Put", "field document.sha256", strings.Repeat("ab", 32))
	c := claim.New(locker, "grpc", claim.DefaultSettings())
	out := must[claim.Outcome](t)(c.Begin(t.Context(), claim.Request{Key: key, ID: "request-7"}))
	defer out.Claim.Close()
	out.Claim.LeaveUnknown()
	name := claim.LockKey(locker, claim.KeyPrefix, key)
	check.Eventually(t, "the orphan", func() bool {
		st, err := locker.Inspect(t.Context(), name)
		return err == nil && st.Status == core.Orphaned
	})
	for _, said := range []string{claim.KeyPrefix + key, name} { // by the log, and by ls
		shown, _ := ctl(t, 0, "inspect", said, "-redis", node.Addr())
		contains(t, shown, "orphaned", "request-7")
	}
	ctl(t, 0, "unseal", claim.KeyPrefix+key, "-redis", node.Addr())
	if st := must[core.State](t)(locker.Inspect(t.Context(), name)); st.Status != core.Free {
		t.Errorf("after unseal the key is %v", st.Status)
	}
}
