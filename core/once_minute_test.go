package core_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil/backendtest"
)

// docs/migration.md, "From cron, gocron and asynq": for each minute, the key of DoOnce has the minute.
func TestDoOnce_OnceAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, backendtest.Memory())
		start, runs := time.Now(), 0
		for i := range 10 {
			time.Sleep(time.Until(start.Add(time.Duration(i) * time.Minute)))
			key := core.Join("sync", time.Now().UTC().Format("200601021504"))
			_, err := l.DoOnce(t.Context(), key, 5*time.Minute, func(context.Context) error {
				runs++
				time.Sleep(2 * time.Second)
				return nil
			})
			ok(t, "DoOnce", err)
		}
		if runs != 10 {
			t.Errorf("%d runs in 10 minutes, want 10", runs)
		}
	})
}
