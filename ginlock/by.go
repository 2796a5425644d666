package ginlock

import (
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
)

// ByHeader returns a middleware that takes the key from the header of this name: "k" in quotes, as RFC 8941 has it, or
// plain k, of 1 to 255 visible ASCII characters; anything else is 400. Requests without the header run unprotected,
// unless [Require] is set.
//
// It panics at wiring when the name is no header name, or when options contradict each other. The Locker may be set
// later, by [core.SetDefault]: until then requests with a key are 503.
func ByHeader(name string, opts ...Option) gin.HandlerFunc {
	if !validToken(name) {
		panic(fmt.Sprintf("ginlock: ByHeader(%q): pass the name of a header, for example Idempotency-Key", name))
	}
	name = http.CanonicalHeaderKey(name)
	return newMiddleware(source{
		name: name,
		read: func(c *gin.Context) (string, error) { return idempotency.ParseKey(c.Request.Header.Values(name)) },
		lock: func(_ *gin.Context, key string) []string { return []string{"header", name, key} },
	}, opts)
}

// ByParam returns a middleware that takes the key from the parameter of the route's path of this name: "id" on
// /orders/:id. It has 1 to 255 bytes without control characters; anything else is 400. On a route that has no such
// parameter every request is refused with 500 and logged.
//
// With [LockOnly] the key is the resource, that is the path up to and with the parameter: see the package's text.
//
// It panics at wiring when the name is empty, or when options contradict each other. The Locker may be set later, by
// [core.SetDefault]: until then requests are 503.
func ByParam(name string, opts ...Option) gin.HandlerFunc {
	if name == "" {
		panic(`ginlock: ByParam(""): pass the name of a parameter of the route: "id" on /orders/:id`)
	}
	return newMiddleware(source{
		name: ":" + name,
		read: func(c *gin.Context) (string, error) { return paramKey(c, name) },
		lock: func(c *gin.Context, _ string) []string { return []string{resource(c.FullPath(), name, c.Params)} },
	}, opts)
}

// source is where a middleware's key comes from.
type source struct {
	name string
	read func(*gin.Context) (string, error) // "" with idempotency.ErrNoKey where there is none
	lock func(c *gin.Context, key string) []string
}

// middleware is one ByHeader or ByParam.
type middleware struct {
	config
	source
	shared sync.Once // the note that all callers share one space of keys
	claims atomic.Pointer[claims]
}

func newMiddleware(s source, opts []Option) gin.HandlerFunc {
	m := &middleware{config: newConfig(opts), source: s}
	if m.lockOnly {
		return m.serve(m.serveLocked)
	}
	return m.serve(m.serveOnce)
}

// serve sorts out which requests are not protected, and which have a bad key; next does the rest.
func (m *middleware) serve(next func(c *gin.Context, l *core.Locker, key string)) gin.HandlerFunc {
	return func(c *gin.Context) {
		if c.FullPath() == "" || !m.covers(c.Request.Method) {
			return
		}
		key, err := m.read(c)
		switch {
		case err == idempotency.ErrNoKey && !m.require:
			return
		case err != nil:
			m.refuseKey(c, err)
			return
		}
		l := m.locker
		if l == nil {
			l = core.Default()
		}
		if l == nil {
			slog.ErrorContext(c.Request.Context(), "ginlock: there is no Locker: call core.SetDefault when the process starts, or pass ginlock.WithLocker", "route", c.FullPath())
			m.refuse(c, problemNoLocker)
			return
		}
		next(c, l, key)
	}
}

// covers says whether requests of this method are protected.
func (m *middleware) covers(method string) bool {
	if m.methods != nil {
		return m.methods[method]
	}
	return m.lockOnly || !safe[method]
}

// safe are the methods that have no effect to protect (RFC 9110, 9.2.1).
var safe = map[string]bool{http.MethodGet: true, http.MethodHead: true, http.MethodOptions: true, http.MethodTrace: true}

type tokenKey struct{}

// Token returns the fencing token of the request's claim or lock, of the innermost where there are several; false
// where the request runs unprotected. Hand it to whatever can refuse an older one.
func Token(c *gin.Context) (uint64, bool) {
	v, _ := c.Get(tokenKey{})
	t, ok := v.(uint64)
	return t, ok
}
