package idempotency_test

import (
	"log/slog"
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/internal/routertest"
)

func TestMain(m *testing.M) {
	check.Parallel(8)
	gin.SetMode(gin.ReleaseMode)
	slog.SetDefault(slog.New(slog.DiscardHandler))
	check.Main(m)
}

func TestRouter_ServeMux(t *testing.T) {
	t.Parallel()
	routertest.Run(t, func(h http.HandlerFunc, opts ...idempotency.HTTPOption) http.Handler {
		mux := http.NewServeMux()
		mux.Handle("POST /orders/{id}", idempotency.ByHeader("Idempotency-Key", opts...)(h))
		return mux
	})
}

func TestRouter_Gin(t *testing.T) {
	t.Parallel()
	routertest.Run(t, func(h http.HandlerFunc, opts ...idempotency.HTTPOption) http.Handler {
		r := gin.New()
		r.POST("/orders/:id", ginlock.ByHeader("Idempotency-Key", opts...), gin.WrapF(h))
		return r
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
