package idempotency_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/idempotency"
)

// The window is a retention, and has its limits: the Locker would refuse it with each request.
func TestRefuseRepeats_LongWindow(t *testing.T) {
	t.Parallel()
	const tenYears = 10 * 365 * 24 * time.Hour
	for _, window := range []time.Duration{math.MaxInt64, tenYears + 1} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, "must be at most 87600h0m0s") {
					t.Errorf("RefuseRepeats(%v): panic %q does not say the limit", window, got)
				}
			}()
			idempotency.RefuseRepeats(window)
		}()
	}
	idempotency.RefuseRepeats(tenYears)
}
