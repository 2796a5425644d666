package pagetest

import (
	"testing"
	"time"
)

// A counter of OpenTelemetry has no series before its first event. A fail-over that loses 300 locks
// at once makes a series that begins with 300 and stays there, and increase() of it is 0.
func TestAlerts_SeeTheFirstEventOfASeries(t *testing.T) {
	get := loaded(t, `load 30s
  onelane_locks_lost_total{onelane_reason="gone",instance="a",job="shop"} _ _ _ 300x60
  onelane_idempotency_requests_total{onelane_outcome="lost",onelane_route="/pay",instance="a",job="shop"} _ _ _ 1x60
`)
	for _, name := range []string{"OnelaneLocksLost", "OnelaneAnswersNotRecorded"} {
		for at, fires := range map[time.Duration]bool{30 * time.Second: false, 3 * time.Minute: true, 20 * time.Minute: false} {
			if result := get(t, alerts(t)[name], at); len(result) > 0 != fires {
				t.Errorf("%s after %v: %v, want that it fires: %v", name, at, result, fires)
			}
		}
	}
}

// A service lost locks some time ago. One scrape of it fails, and Prometheus marks its series stale
// until the next one. Five minutes later nothing has happened, and nobody is called.
func TestAlerts_OneFailedScrape(t *testing.T) {
	get := loaded(t, `load 30s
  onelane_locks_lost_total{onelane_reason="gone",instance="a",job="shop"} 300x60 stale 300x60
  onelane_idempotency_requests_total{onelane_outcome="lost",onelane_route="/pay",instance="a",job="shop"} 1x60 stale 1x60
`)
	for _, name := range []string{"OnelaneLocksLost", "OnelaneAnswersNotRecorded"} {
		// 300x60 are 61 samples, from 0 s to 30 min. The marker is at 30 min 30 s.
		if result := get(t, alerts(t)[name], 35*time.Minute+45*time.Second); len(result) > 0 {
			t.Errorf("%s after one failed scrape: %v, want that it does not fire", name, result)
		}
	}
}
