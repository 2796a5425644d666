package ginlock

import (
	"context"
	"errors"
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
// plain k, of 1 to 255 printable ASCII characters; anything else is 400. Requests without the header run unprotected,
// unless [Require] is set.
//
// It panics at wiring when the name is no header name, or one that net/http keeps out of the headers (Host), or when options contradict
// each other. The Locker may be set
// later, by [core.SetDefault]: until then requests with a key are 503.
func ByHeader(name string, opts ...Option) gin.HandlerFunc {
	if !validToken(name) {
		panic(fmt.Sprintf("ginlock: ByHeader(%q): pass the name of a header, for example Idempotency-Key", name))
	}
	name = http.CanonicalHeaderKey(name)
	if err := keptHeader(name); err != nil {
		panic(fmt.Sprintf("ginlock: ByHeader(%q): %v", name, err))
	}
	return newMiddleware(source{
		name: name, place: "the header " + name, form: headerForm,
		read: func(_ *middleware, c *gin.Context) (string, error) {
			return idempotency.ParseKey(c.Request.Header.Values(name))
		},
		lock: func(_ *gin.Context, key string) string { return core.Join("header", name, key) },
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
		name: ":" + name, place: "the path parameter " + name, form: valueForm,
		read: func(_ *middleware, c *gin.Context) (string, error) { return paramKey(c, name) },
		lock: func(c *gin.Context, _ string) string { return core.Join(resource(c.FullPath(), name, c.Params)) },
	}, opts)
}

// ByQuery returns a middleware that takes the key from the query parameter of this name. It has 1 to 255 bytes without
// control characters; anything else, and a parameter that comes twice, is 400. Requests without it run unprotected,
// unless [Require] is set. With [LockOnly] the lock is "query:<name>:<value>", on all routes; read the parameter by Query
// or ShouldBindQuery, since FormValue and ShouldBind take what is in the body first, and could find another one.
//
// It panics at wiring when the name is empty, or when options contradict each other. The Locker may be set later, by
// [core.SetDefault]: until then requests with a key are 503.
func ByQuery(name string, opts ...Option) gin.HandlerFunc {
	if name == "" {
		panic(`ginlock: ByQuery(""): pass the name of a query parameter: "order" of ?order=42`)
	}
	return newMiddleware(source{
		name: "?" + name, place: "the query parameter " + name, form: valueForm,
		read: func(_ *middleware, c *gin.Context) (string, error) { return queryKey(c.Request.URL.RawQuery, name) },
		lock: func(_ *gin.Context, key string) string { return core.Join("query", name, key) },
	}, opts)
}

// KeyFunc says what the key of a request is; "" is none. With an error the request is refused with 400
// idempotency_key_invalid; the error is logged, and not shown to the client.
type KeyFunc func(c *gin.Context) (string, error)

// By returns a middleware that asks fn for the key: a text without control characters, of up to 512 bytes with
// [LockOnly]; there it is the name of the lock as it is, the same as for Acquire in package core (but see [Principal]).
// Without LockOnly it belongs to one principal, method and route, as every key. Join parts that come from outside by
// [core.Join]. Requests whose key is "" run unprotected, unless [Require] is set. If fn reads the body it must put it
// back.
//
// It panics at wiring when fn is nil, or when options contradict each other. The Locker may be set later, by
// [core.SetDefault]: until then requests with a key are 503.
func By(fn KeyFunc, opts ...Option) gin.HandlerFunc {
	if fn == nil {
		panic("ginlock: By(nil): pass a function that returns the key of a request")
	}
	return newMiddleware(source{
		name: "func", place: "what the key is made of", form: "something else.",
		read: func(m *middleware, c *gin.Context) (string, error) { return m.funcKey(c, fn) },
		lock: func(_ *gin.Context, key string) string { return key },
	}, opts)
}

// source is where a middleware's key comes from.
type source struct {
	name  string // part of the key
	place string // in words, for a client
	form  string // what to send there
	// read returns idempotency.ErrNoKey where there is none. It may read the body only if readsBody is set.
	read      func(*middleware, *gin.Context) (string, error)
	lock      func(c *gin.Context, key string) string
	readsBody bool
	byCaller  bool // the key names the principal itself
	constant  bool
	repeats   bool // RefuseRepeats
}

// middleware is one By… of this package.
type middleware struct {
	config
	source
	shared sync.Once // the note that all callers share one space of keys
	claims atomic.Pointer[claims]
}

func newMiddleware(s source, opts []Option) gin.HandlerFunc {
	m := &middleware{config: newConfig(s, opts), source: s}
	if len(m.routes) == 0 {
		return m.serve
	}
	return perRoute(m, opts)
}

// serve sorts out which requests are not protected, and which have a bad key.
func (m *middleware) serve(c *gin.Context) {
	if c.FullPath() == "" || !m.covers(c.Request.Method) {
		return
	}
	key, err := m.read(m, c)
	switch {
	case err == idempotency.ErrNoKey && !m.require: // of a template it is part of a fieldError
		return
	case err != nil:
		m.refuseKey(c, err)
		return
	}
	l := m.locker
	if l == nil {
		l = core.Default()
	}
	switch {
	case l == nil:
		slog.ErrorContext(c.Request.Context(), "ginlock: there is no Locker: call core.SetDefault when the process starts, or pass ginlock.WithLocker", "route", c.FullPath())
		m.refuse(c, problemNoLocker)
	case m.repeats:
		m.serveRepeats(c, l, key)
	case m.lockOnly:
		m.serveLocked(c, l, key)
	default:
		m.serveOnce(c, l, key)
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

type heldKey struct{}

// held is the lock or the claim of a request.
type held interface {
	Token(context.Context) (uint64, error)
}

var errNotHeld = errors.New("ginlock: the request holds no lock and no claim, so it has no fencing token")

// Token returns the fencing token of the request's claim or lock, of the innermost one if there are
// several. Hand it to a resource that refuses smaller tokens. The first call costs a round trip (see
// [core.Lock.Token]). It is an error if the request runs unprotected.
func Token(c *gin.Context) (uint64, error) {
	v, _ := c.Get(heldKey{})
	h, ok := v.(held)
	if !ok {
		return 0, errNotHeld
	}
	return h.Token(c.Request.Context())
}
