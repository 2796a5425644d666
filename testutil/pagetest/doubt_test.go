package pagetest

import (
	"testing"
	"time"
)

// The first event after which money or stock may be wrong raises an alert. docs/operations.md asks for that: "Any".
func TestMonitoring_AlertsOnEachDoubt(t *testing.T) {
	for _, series := range []string{
		`onelane_locks_lost_total{job="shop",onelane_reason="expired"}`,
		`onelane_idempotency_requests_total{job="shop",onelane_route="/pay",onelane_outcome="lost"}`,
		`onelane_idempotency_requests_total{job="shop",onelane_route="/pay",onelane_outcome="unrecorded"}`,
		`onelane_idempotency_requests_total{job="shop",onelane_route="/pay",onelane_outcome="unknown"}`,
		`onelane_idempotency_requests_total{job="shop",onelane_route="/pay",onelane_outcome="refused_unknown"}`,
		`onelane_idempotency_requests_total{job="shop",onelane_route="/pay",onelane_outcome="unreadable"}`,
		`onelane_gormlock_unknown_commits_total{job="shop"}`,
		`onelane_stock_unknown_commits_total{job="shop"}`,
	} {
		t.Run(series, func(t *testing.T) {
			get := loaded(t, "load 30s\n  "+series+" _ _ 1 1 1\n") // it begins with its first event
			fired := false
			for _, rule := range alerts(t) {
				fired = fired || len(get(t, rule, 2*time.Minute)) > 0
			}
			if !fired {
				t.Error("no alert fires")
			}
		})
	}
}

// The dashboard shows the one lost lock that raised the alert. Its series begins with it, unlike those of load.
func TestMonitoring_ShowsTheFirstEvent(t *testing.T) {
	get := loaded(t, `load 30s
  onelane_locks_lost_total{job="shop",onelane_reason="expired"} _ _ 1 1 1
  onelane_idempotency_requests_total{job="shop",onelane_outcome="lost"} _ _ 1 1 1
`)
	for _, title := range []string{"Locks lost", "Requests in doubt"} {
		queries := panels(t)[title]
		if len(queries) == 0 {
			t.Errorf("there is no panel %q", title)
		}
		for _, query := range queries {
			if v := get(t, query, 2*time.Minute); len(v) != 1 || v[0].F < 1 {
				t.Errorf("the panel %q shows %v; want one", title, v)
			}
		}
	}
}
