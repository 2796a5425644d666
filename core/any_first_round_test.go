package core_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// Every question is answered within a millisecond, and every key is taken. The wait ends in the
// first round over the keys. That is no outage.
func TestAcquireAny_WaitEndsInTheFirstRound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := backendtest.Memory()
		other := locker(t, b)
		l := locker(t, keyed{b, func(context.Context, string) error {
			time.Sleep(time.Millisecond)
			return nil
		}})
		for _, key := range slots(200) {
			acquire(t, other, key)
		}
		_, err := l.AcquireAny(t.Context(), slots(200), core.WithWait(100*time.Millisecond+500*time.Microsecond))
		want(t, "AcquireAny of taken keys", err, core.ErrTaken)
		time.Sleep(time.Second) // the question that is under way ends
	})
}
