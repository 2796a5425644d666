package main

import (
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
)

// The person on call finds an unknown outcome and looks what the run did. Meanwhile the run ends and
// seals over its own orphan, as a claim does. Then its record must stay: without it a retry runs again.
func TestRunbook_ARecordThatCameMeanwhileStays(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	locker := must[*core.Locker](t)(core.New(on(node.Client()), core.WithTTL(2*time.Second)))
	defer locker.Close()
	const key = "claim:ann:1"
	run := must[*core.Lock](t)(locker.Acquire(t.Context(), key, core.WithOrphan(time.Hour), core.WithMaxHold(0)))
	check.Eventually(t, "the orphan", func() bool {
		st, err := locker.Inspect(t.Context(), key)
		return err == nil && st.Status == core.Orphaned
	})
	out, _ := ctl(t, 0, "-redis", node.Addr(), "inspect", key)
	contains(t, out, "orphaned", "unseal the key to let it run again")

	surely(t, "Seal", func() error { return run.Seal(t.Context(), []byte("201 Created"), time.Hour) })

	_, errs := ctl(t, 1, "-redis", node.Addr(), "unseal", key)
	contains(t, errs, "has a record", "-yes")
	if st := must[core.State](t)(locker.Inspect(t.Context(), key)); st.Status != core.Sealed {
		t.Errorf("after unseal the key is %v: the retry runs again", st.Status)
	}
	out, _ = ctl(t, 0, "-redis", node.Addr(), "unseal", key, "-yes")
	contains(t, out, "unsealed claim:ann:1")
}
