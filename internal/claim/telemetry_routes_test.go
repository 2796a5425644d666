package claim_test

import (
	"fmt"
	"testing"

	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/onelane/onelane/internal/claim"
)

// Many thousand routes do not hide how a request ended. The SDK keeps 2,000 series of an
// instrument, and counts all further ones as one, without any of their attributes. It is not
// parallel, because it uses up what the process has for routes.
func TestTelemetry_ManyRoutes(t *testing.T) {
	t.Cleanup(claim.ForgetRoutes)
	m := newMeter(t)
	l := memoryLocker(t, m)
	a, b := newClaims(l), newClaims(l) // two middlewares share the counter
	for i := range 1_500 {
		a.CountWithoutKey(t.Context(), fmt.Sprint("/a", i))
		b.CountWithoutKey(t.Context(), fmt.Sprint("/b", i))
	}
	out, err := a.Begin(t.Context(), claim.Request{Key: "k", Route: "/pay"})
	ok(t, "Begin", err)
	out.Claim.LeaveUnknown()
	out.Claim.Close()
	for _, p := range m.read("onelane.idempotency.requests").Data.(metricdata.Sum[int64]).DataPoints {
		if o, _ := p.Attributes.Value("onelane.outcome"); o.AsString() == "unknown" && p.Value == 1 {
			return
		}
	}
	t.Error("a request of unknown outcome is counted without its outcome")
}

// Claims are made anew for each middleware, and when core.SetDefault is called again. Their series are the
// same ones, and must not use up what the process has for routes.
func TestTelemetry_OneRouteOfManyClaims(t *testing.T) {
	t.Cleanup(claim.ForgetRoutes)
	m := newMeter(t)
	l := memoryLocker(t, m)
	const claims = 1_600
	for range claims {
		newClaims(l).CountWithoutKey(t.Context(), "/pay")
	}
	var withRoute int64
	for _, p := range m.read("onelane.idempotency.requests").Data.(metricdata.Sum[int64]).DataPoints {
		if route, _ := p.Attributes.Value("onelane.route"); route.AsString() == "/pay" {
			withRoute += p.Value
		}
	}
	if withRoute != claims {
		t.Errorf("%d of %d requests are counted with their only route", withRoute, claims)
	}
}
