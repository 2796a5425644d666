package routers

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/metadata"
)

// grpc-gateway passes the key on only with the matcher of docs/idempotency.md.
func TestGateway_PassesTheKeyOn(t *testing.T) {
	t.Parallel()
	mux := runtime.NewServeMux(runtime.WithIncomingHeaderMatcher(func(name string) (string, bool) {
		if strings.EqualFold(name, "Idempotency-Key") {
			return "idempotency-key", true
		}
		return runtime.DefaultHeaderMatcher(name)
	}))
	for _, c := range []struct {
		name string
		mux  *runtime.ServeMux
		want string
	}{{"with the matcher", mux, "k1"}, {"by default", runtime.NewServeMux(), ""}} {
		request := httptest.NewRequest(http.MethodPost, "/orders", nil)
		request.Header.Set("Idempotency-Key", "k1")
		ctx, err := runtime.AnnotateContext(t.Context(), c.mux, request, "/shop.Orders/Create")
		if err != nil {
			t.Fatal(err)
		}
		sent, _ := metadata.FromOutgoingContext(ctx)
		if got := strings.Join(sent.Get("idempotency-key"), ""); got != c.want {
			t.Errorf("%s: the call has the key %q, want %q", c.name, got, c.want)
		}
	}
}
