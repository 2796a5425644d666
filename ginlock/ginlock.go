package ginlock

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/gin-gonic/gin/binding"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/claim"
)

// ByHeader returns a middleware that runs a request once for each key in the header of this name.
// See [idempotency.ByHeader].
func ByHeader(name string, opts ...idempotency.HTTPOption) gin.HandlerFunc {
	return adapt(idempotency.ByHeader(name, withGin(opts)...))
}

// ByKey returns a middleware that makes the key of a template, such as
// "{header.X-Tenant}:{param.id}". See [idempotency.ByKey].
func ByKey(template string, opts ...idempotency.HTTPOption) gin.HandlerFunc {
	return adapt(idempotency.ByKey(template, withGin(opts)...))
}

// By returns a middleware that takes the key from fn. See [idempotency.By].
func By(fn func(c *gin.Context) (string, error), opts ...idempotency.HTTPOption) gin.HandlerFunc {
	return adapt(idempotency.By(onRequest(fn), withGin(opts)...))
}

// RefuseRepeats returns a middleware that refuses a form that is submitted twice within the window.
// See [idempotency.RefuseRepeats]. The address of the client is gin's ClientIP.
func RefuseRepeats(window time.Duration, opts ...idempotency.HTTPOption) gin.HandlerFunc {
	return adapt(idempotency.RefuseRepeats(window, withGin(opts)...))
}

// LockByKey returns a middleware that runs one request at a time for each key, made of a template
// such as "order:{param.id}". The key is the text: 07 is not 7. See [idempotency.LockByKey].
func LockByKey(template string, opts ...idempotency.LockOption) gin.HandlerFunc {
	return adapt(idempotency.LockByKey(template, withGin(opts)...))
}

// LockBy is [LockByKey] with a function that makes the key. See [idempotency.LockBy].
func LockBy(fn func(c *gin.Context) (string, error), opts ...idempotency.LockOption) gin.HandlerFunc {
	return adapt(idempotency.LockBy(onRequest(fn), withGin(opts)...))
}

// Principal sets the caller. See [idempotency.Principal]. The default is the name that
// gin.BasicAuth left under gin.AuthUserKey.
func Principal(fn func(c *gin.Context) string) idempotency.LockOption {
	if fn == nil {
		return idempotency.Principal(nil)
	}
	return idempotency.Principal(func(r *http.Request) string { return fn(contextOf(r)) })
}

func onRequest(fn func(c *gin.Context) (string, error)) func(*http.Request) (string, error) {
	if fn == nil {
		return nil
	}
	return func(r *http.Request) (string, error) { return fn(contextOf(r)) }
}

// withGin puts Gin's router before the options.
func withGin[T idempotency.HTTPOption](opts []T) []T {
	var router any = claim.Router{
		Pattern: func(r *http.Request) string { return contextOf(r).FullPath() },
		Param:   func(r *http.Request, name string) (string, bool) { return contextOf(r).Params.Get(name) },
		User:    func(r *http.Request) (string, error) { return user(contextOf(r)) },
		Address: func(r *http.Request) string { return contextOf(r).ClientIP() },
		Body: func(r *http.Request) []byte {
			v, _ := contextOf(r).Get(gin.BodyBytesKey)
			body, _ := v.([]byte)
			return body
		},
		Bound: func(r *http.Request) bool {
			return binding.Default(r.Method, contextOf(r).ContentType()) == binding.JSON
		},
	}
	return append([]T{router.(T)}, opts...)
}

func init() {
	claim.Gin = func(ctx context.Context) context.Context {
		if c, ok := ctx.Value(gin.ContextKey).(*gin.Context); ok && c.Request != nil {
			return c.Request.Context()
		}
		return nil
	}
}

// user returns the name that an authentication left for Gin.
func user(c *gin.Context) (string, error) {
	v, ok := c.Get(gin.AuthUserKey)
	if !ok {
		return "", nil
	}
	name, ok := v.(string)
	if !ok || name == "" {
		// As text, the value could differ in a retry, and the retry would run again.
		return "", fmt.Errorf("ginlock: gin.AuthUserKey holds a %T, not a name", v)
	}
	return name, nil
}

// request is a request in a middleware. Others find it in this context.
type request struct {
	context.Context
	c     *gin.Context
	sent  sender // to the writer outside
	inner writer // the handler's, if the request is protected
	ran   bool
}

// passed reports whether something was written without our writers. An outer middleware of this
// package does not see that, so passed asks each of them.
func (r *request) passed() bool {
	for q := r; q != nil && q.c == r.c; q, _ = q.Context.Value(requestKey{}).(*request) {
		if q.sent.Written() {
			return true
		}
	}
	return false
}

type requestKey struct{}

// Value implements [context.Context].
func (r *request) Value(key any) any {
	if key == (requestKey{}) {
		return r
	}
	return r.Context.Value(key)
}

func contextOf(r *http.Request) *gin.Context {
	req, ok := r.Context().Value(requestKey{}).(*request)
	if !ok {
		panic("ginlock: a middleware of package idempotency got an option of ginlock: pass idempotency.Principal instead")
	}
	return req.c
}

// adapt turns a middleware of net/http into one of Gin. It panics if it cannot see its place in
// Gin's chain: a handler could then run without a lock, and nobody would notice.
//
// It must not be inlined: Check knows the middlewares of this package by the code of its closure.
//
//go:noinline
func adapt(middleware func(http.Handler) http.Handler) gin.HandlerFunc {
	if index == nil || handlers == nil {
		panic("ginlock: the Context of this version of Gin has other fields: use Gin v1.12, or a later version of onelane")
	}
	h := middleware(http.HandlerFunc(next))
	var unrouted sync.Once
	var warned sync.Map // methods with routes: one must not hide another
	return func(c *gin.Context) {
		if c.FullPath() == "" { // no route matched
			if asked, ok := c.Get(askedKey); ok { // by Check
				*asked.(*http.Handler) = h
				return
			}
			c.Next()
			if c.FullPath() == "" && acted(c) { // engine.HandleContext may have found a route
				unrouted.Do(func() {
					slog.WarnContext(c.Request.Context(),
						"ginlock: a request without a route ran unprotected: give the handler of engine.NoRoute a route",
						"path", c.Request.URL.Path)
				})
			}
			return
		}
		if past := pastEnd(c); past >= 0 {
			answered := c.Writer.Written() || past > 0 && c.Writer.Status() != http.StatusOK
			misplaced := func() {
				slog.ErrorContext(c.Request.Context(),
					"ginlock: no handler follows in Gin's chain, so none would be protected: pass the middleware to Use or to the route, and do not call it",
					"route", c.FullPath())
			}
			// A middleware that was called before has refused the request, or has answered a
			// preflight. A handler may abort, too, after it ran without protection. That is logged
			// once for each method and route.
			if answered && c.IsAborted() {
				if c.Writer.Status() < http.StatusMultipleChoices {
					if _, again := warned.LoadOrStore(c.Request.Method+" "+c.FullPath(), true); !again {
						misplaced()
					}
				}
				return
			}
			misplaced()
			// The chain has run before, and answered. A status alone is not sent yet.
			if answered {
				c.Abort()
				return
			}
			if past == 0 { // nothing was done: the keys around are free, as after other refusals
				claim.SuggestAll(c.Request.Context(), claim.Free)
			}
			p := idempotency.RefusalOf(idempotency.CodeMisconfigured)
			c.Header("Content-Type", "application/problem+json")
			c.AbortWithStatusJSON(p.Status, p)
			return
		}
		outside := c.Request
		req := &request{Context: outside.Context(), c: c, sent: sender{ResponseWriter: c.Writer}}
		r := outside.WithContext(req)
		c.Request = r // the function of By may read the body and put it back
		defer func() {
			outside.MultipartForm = r.MultipartForm // the server removes its files
			c.Request = outside
		}()
		h.ServeHTTP(&req.sent, r)
		req.sent.finish()
		if !req.ran {
			c.Abort()
		}
	}
}

// acted reports whether a request without a route may have had an effect.
func acted(c *gin.Context) bool {
	switch c.Request.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return false
	}
	return c.Writer.Status() < 400
}

// next runs the rest of Gin's chain.
func next(w http.ResponseWriter, r *http.Request) {
	req := r.Context().Value(requestKey{}).(*request)
	req.ran = true
	c := req.c
	outer, outside := c.Writer, c.Request
	if w == http.ResponseWriter(&req.sent) { // the request runs unprotected
		c.Next()
		return
	}
	inner := &req.inner
	*inner = newWriter(w, outer)
	c.Writer, c.Request = inner, r
	defer func() {
		r.MultipartForm = c.Request.MultipartForm
		c.Writer, c.Request = outer, outside
	}()
	errs := len(c.Errors)
	c.Next()
	k, claimed := claim.FromContext(r.Context())
	if around, ok := claim.FromContext(outside.Context()); ok && k == around {
		claimed = false // a plain lock
	}
	switch {
	case inner.Written():
	case !claimed: // whoever is outside may still answer
		if inner.decided {
			outer.WriteHeader(inner.status)
		}
	case req.passed(): // gin.Engine.HandleContext writes to Gin's own writer
		k.Suggest(claim.NotKept)
	case inner.decided:
		// The answer could not be rendered: Gin sets the content type before rendering fails. A
		// redirect has no content type, and is an answer even if an error was logged.
		if inner.status < 400 && inner.Header()["Content-Type"] != nil && c.IsAborted() && len(c.Errors) > errs {
			claim.SuggestAll(r.Context(), claim.NotKept) // the keys around get the same answer
		}
		inner.finish()
	case len(c.Errors) > errs: // a middleware outside will answer
		k.Suggest(claim.Unanswered)
	case r.Context().Err() != nil: // the handler gave up, and the middleware answers
	default:
		inner.finish()
	}
}
