package core_test

import (
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// Masters that are all new are used at once, but not by a process that comes when one of them was used and has been restarted since:
// that one is younger than the others, or another still knows a holder.
func TestQuorum_NewMastersAreNotTakenForNewWhenOneForgot(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		key  string
		wait time.Duration // until the restart
	}{
		"a holder is known":       {"k", 0},
		"they are not of one age": {"other", 3500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes := testutil.Cluster(t, 3)
			first := locker(t, core.Clients(nodes.Clients()...), patient)
			for _, key := range []string{"k", "other"} {
				acquire(t, first, key)
				eventually(t, "all nodes hold it", func() bool { // and one of them as if it had not got there
					return nodes[2].Client().Del(t.Context(), "onelane:{"+key+"}").Val() == 1
				})
			}
			if c.wait > 0 { // nor is the holder known where it is asked: the process learns of the nodes by another key
				time.Sleep(c.wait)
			}
			nodes[1].Restart() // and forgets it
			second := locker(t, core.Clients(nodes.Clients()...), patient)
			if c.wait > 0 {
				_, err := second.TryAcquire(t.Context(), "free")
				want(t, "TryAcquire of a free key", err, core.ErrUnavailable)
			}
			if _, err := second.TryAcquire(t.Context(), c.key); err == nil {
				t.Error("two hold the key")
			}
		})
	}
}
