// Package routers tests idempotency with routers that the library does not depend on.
package routers

import (
	"net/http"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/labstack/echo/v4"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/routertest"
)

func TestRouter_Chi(t *testing.T) {
	t.Parallel()
	routertest.Run(t, func(h http.HandlerFunc, opts ...idempotency.HTTPOption) http.Handler {
		r := chi.NewRouter()
		r.With(idempotency.ByHeader("Idempotency-Key", opts...)).Post("/orders/{id}", h)
		return r
	})
}

// Echo writes the answer to an error that a handler returns outside of all middlewares. The inner one
// makes it write that answer inside, so that it is recorded.
func TestRouter_Echo(t *testing.T) {
	t.Parallel()
	routertest.Run(t, func(h http.HandlerFunc, opts ...idempotency.HTTPOption) http.Handler {
		e := echo.New()
		answerErrors := func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error {
				if err := next(c); err != nil {
					c.Error(err)
				}
				return nil
			}
		}
		e.POST("/orders/:id", echo.WrapHandler(h),
			echo.WrapMiddleware(idempotency.ByHeader("Idempotency-Key", opts...)), answerErrors)
		return e
	})
}
