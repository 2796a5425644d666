// Package routers tests idempotency with routers that the library does not depend on.
package routers

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/labstack/echo/v4"
	echo5 "github.com/labstack/echo/v5"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/routertest"
	"github.com/onelane/onelane/testutil"
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

func routeOf(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		c.Request().Pattern = c.Path()
		for _, name := range c.ParamNames() {
			c.Request().SetPathValue(name, c.Param(name))
		}
		return next(c)
	}
}

// TestRouter_EchoParams: routeOf hands Echo's routes and parameters to net/http.
func TestRouter_EchoParams(t *testing.T) {
	t.Parallel()
	locker := testutil.Locker(t)
	e, lock := echo.New(), idempotency.LockByKey("order:{param.id}", idempotency.WithLocker(locker))
	grab := func(c echo.Context) error {
		_, err := locker.TryAcquire(t.Context(), "order:7")
		if err == nil {
			t.Error("order:7 is free while its handler runs")
		}
		return c.String(http.StatusOK, c.Request().Pattern)
	}
	e.POST("/orders/:id/grab", grab, routeOf, echo.WrapMiddleware(lock))
	e.POST("/without/:id", grab, echo.WrapMiddleware(lock))
	post := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		e.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, nil))
		return w
	}
	if w := post("/orders/7/grab"); w.Code != http.StatusOK || w.Body.String() != "/orders/:id/grab" {
		t.Errorf("with routeOf: %d %s", w.Code, w.Body)
	}
	if w := post("/without/7"); w.Code != http.StatusInternalServerError {
		t.Errorf("without routeOf: %d %s", w.Code, w.Body)
	}
}

func TestRouter_Echo5(t *testing.T) {
	t.Parallel()
	routertest.Run(t, func(h http.HandlerFunc, opts ...idempotency.HTTPOption) http.Handler {
		e := echo5.New()
		e.POST("/orders/:id", echo5.WrapHandler(h),
			echo5.WrapMiddleware(idempotency.ByHeader("Idempotency-Key", opts...)), answerErrors5)
		return e
	})
}

// answerErrors5 makes Echo answer the error of a handler inside, so that the answer is recorded.
func answerErrors5(next echo5.HandlerFunc) echo5.HandlerFunc {
	return func(c *echo5.Context) error {
		if err := next(c); err != nil {
			c.Echo().HTTPErrorHandler(c, err)
		}
		return nil
	}
}

// Echo 5 hands its routes and parameters to net/http itself, and an error that answerErrors5 answers
// is recorded.
func TestRouter_Echo5Params(t *testing.T) {
	t.Parallel()
	locker := idempotency.WithLocker(testutil.Locker(t))
	e, runs := echo5.New(), 0
	grab := func(c *echo5.Context) error {
		runs++
		return echo5.NewHTTPError(http.StatusNotFound, c.Request().Pattern+" has no "+c.Request().PathValue("id"))
	}
	e.POST("/orders/:id/grab", grab, echo5.WrapMiddleware(idempotency.LockByKey("order:{param.id}", locker)),
		echo5.WrapMiddleware(idempotency.ByHeader("Idempotency-Key", locker)), answerErrors5)
	for _, replayed := range []string{"", "true"} {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/orders/7/grab", nil)
		r.Header.Set("Idempotency-Key", "k")
		e.ServeHTTP(w, r)
		const want = `{"message":"/orders/:id/grab has no 7"}` + "\n"
		if w.Code != http.StatusNotFound || w.Body.String() != want || w.Header().Get("Idempotency-Replayed") != replayed {
			t.Errorf("%d %s %v", w.Code, w.Body, w.Header())
		}
	}
	if runs != 1 {
		t.Errorf("%d runs", runs)
	}
}
