package ginlock

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
)

const (
	defaultRetention = 24 * time.Hour
	defaultMaxBody   = 1 << 20
	largestMaxBody   = 8 << 20
	minRetention     = 10 * time.Millisecond
)

// Option configures a middleware of this package. A nil Option is ignored, the later of two wins.
type Option interface{ apply(*config) }

type option struct {
	name string
	set  func(*config)
}

func (o option) apply(c *config) {
	c.used = append(c.used, o.name)
	o.set(c)
}

// config is what a middleware goes by.
type config struct {
	locker         *core.Locker
	lockOnly       bool
	wait           time.Duration
	require        bool
	failOpen       bool
	methods        map[string]bool
	principal      func(*gin.Context) string
	writeProblem   func(*gin.Context, Problem)
	retention      time.Duration
	recordIf       func(status int) bool
	headers        map[string]bool
	maxBody        int
	maxRequestBody int
	fingerprint    func(c *gin.Context, body []byte) []byte
	records        []idempotency.Option
	space          string
	routes         []route

	used     []string // the names of the options
	mistakes []string
}

// LockOnly records nothing: it holds a lock while the handler runs, so that there is one request at a time per key.
// While it is taken a request gets 409 lock_busy, or waits, with [Wait]. It covers every method, GET too, unless
// [Methods] is given.
func LockOnly() Option { return option{"LockOnly", func(c *config) { c.lockOnly = true }} }

// Wait makes a request wait for up to d for the one that runs with its key: for its answer, or, with [LockOnly], for
// the lock. A wait for a lock also bridges an outage of Redis of up to 10 s, unless [FailOpen] is set. By default a
// request does not wait.
func Wait(d time.Duration) Option {
	return option{"Wait", func(c *config) {
		c.wait = d
		c.check(d >= 0, "Wait(%v): leave it away not to wait", d)
	}}
}

// Require refuses requests without a key: 400 idempotency_key_missing. By default they run unprotected.
func Require() Option { return option{"Require", func(c *config) { c.require = true }} }

// FailOpen runs requests unprotected when Redis is not available, and logs each; not those whose client is gone, or
// whose context has ended otherwise. By default they are 503 lock_unavailable.
func FailOpen() Option { return option{"FailOpen", func(c *config) { c.failOpen = true }} }

// WithLocker sets the Locker. Default: the one passed to [core.SetDefault].
func WithLocker(l *core.Locker) Option {
	return option{"WithLocker", func(c *config) {
		c.locker = l
		c.check(l != nil, "WithLocker(nil): check the error of core.New first, or leave the option away for core.SetDefault")
	}}
}

// Methods sets which methods are covered. Default: all but GET, HEAD, OPTIONS and TRACE, which have no effect to
// protect and may only be named with [LockOnly].
func Methods(methods ...string) Option {
	return option{"Methods", func(c *config) {
		c.methods = make(map[string]bool, len(methods))
		for _, m := range methods {
			c.methods[strings.ToUpper(m)] = true
		}
		c.check(len(methods) > 0, "Methods(): name at least one, or leave it away")
	}}
}

// Principal sets who asks: a name that is stable over retries and is verified, such as a user or tenant id; keys of
// different principals have nothing to do with each other. "" is an anonymous caller, see the package's text. Default:
// the name that gin.BasicAuth left under gin.AuthUserKey.
//
// With [LockOnly] leave it away, unless you want a lock for each: all callers exclude each other by default, and with
// Principal two callers may be at work on one resource at the same time, since the name of the lock ends with the
// caller's ("order:42:ann"). Where each should have a lock, {principal} in the template of [ByKey] says so openly.
func Principal(fn func(*gin.Context) string) Option {
	return option{"Principal", func(c *config) {
		c.principal = fn
		c.check(fn != nil, "Principal(nil): pass a function, or leave it away")
	}}
}

// WithProblemWriter sets how refusals are written; the Retry-After header is set already. Default:
// application/problem+json.
func WithProblemWriter(fn func(*gin.Context, Problem)) Option {
	return option{"WithProblemWriter", func(c *config) {
		c.writeProblem = fn
		c.check(fn != nil, "WithProblemWriter(nil): pass a function, or leave it away")
	}}
}

// Retain sets how long an answer is kept: after that its key runs anew. Default 24 h, at least 10 ms.
func Retain(d time.Duration) Option {
	return option{"Retain", func(c *config) {
		c.retention = d
		c.check(d >= minRetention, "Retain(%v): keep answers for at least %v", d, minRetention)
	}}
}

// RecordIf sets which statuses are recorded; after the others a retry runs again. 401 and 407 never are. Default:
// those below 500 but 401, 407, 408, 425 and 429.
func RecordIf(fn func(status int) bool) Option {
	return option{"RecordIf", func(c *config) {
		c.recordIf = fn
		c.check(fn != nil, "RecordIf(nil): pass a function, or leave it away")
	}}
}

// Headers adds names to the headers that are recorded where the handler changed them: Content-Type, Content-Language,
// Content-Encoding, Content-Disposition, Content-Range, Location, ETag, Last-Modified, Link, Cache-Control and Vary. Set-Cookie,
// Authorization, WWW-Authenticate, Proxy-*, Date, Content-Length and those of the connection are not recorded even if
// they are named.
func Headers(names ...string) Option {
	return option{"Headers", func(c *config) {
		for _, name := range names {
			c.check(validToken(name), "Headers(%q): this is no header name", name)
			if name = http.CanonicalHeaderKey(name); !unrecorded(name) {
				c.headers[name] = true
			}
		}
	}}
}

// MaxBody sets up to how many bytes of body are recorded. A larger answer is sent in full, and a retry gets 409
// idempotency_response_not_kept. Default 1 MiB, at most 8 MiB.
func MaxBody(n int) Option {
	return option{"MaxBody", func(c *config) {
		c.maxBody = n
		c.check(n >= 0 && n <= largestMaxBody, "MaxBody(%d): it must be from 0 to 8 MiB", n)
	}}
}

// MaxRequestBody sets how many bytes the body of a request may have, which is read before the handler runs; a larger
// one is 413. Default 1 MiB.
func MaxRequestBody(n int) Option {
	return option{"MaxRequestBody", func(c *config) {
		c.maxRequestBody = n
		c.check(n >= 0, "MaxRequestBody(%d): it must not be negative", n)
	}}
}

// Fingerprint sets what a retry must repeat: the bytes that fn returns, which are stored as a salted hash. Default:
// method, path, query, content type and body, of multipart forms the parts.
func Fingerprint(fn func(c *gin.Context, body []byte) []byte) Option {
	return option{"Fingerprint", func(c *config) {
		c.fingerprint = fn
		c.check(fn != nil, "Fingerprint(nil): pass a function, or leave it away")
	}}
}

// Space puts keys into a space of this name, which all middlewares and interceptors (grpclock has the same option) share
// that name it, have the same Locker and say the same of who asks. By default a key belongs to one method, route and
// place, and the same text elsewhere is another key. In a space it names one request: a retry that comes over HTTP
// after the first came by gRPC is 422 idempotency_other_transport, and one to another method or route 422
// idempotency_key_reused.
func Space(name string) Option {
	return option{"Space", func(c *config) {
		c.space = name
		c.check(name != "", `Space(""): pass a name, or leave it away`)
	}}
}

// Records sets how answers are stored: [idempotency.WithEncryption], [idempotency.WithCompression],
// [idempotency.RunUnreadable]. What has an option of its own here, such as [Retain], is set by that.
func Records(opts ...idempotency.Option) Option {
	return option{"Records", func(c *config) { c.records = append(c.records, opts...) }}
}

func (c *config) check(ok bool, format string, args ...any) {
	if !ok {
		c.mistakes = append(c.mistakes, fmt.Sprintf("ginlock: "+format, args...))
	}
}

// What says nothing about a kind of middleware.
var (
	notWithLockOnly = []string{"Retain", "RecordIf", "Headers", "MaxBody", "Fingerprint", "Records", "Space"}
	notWithRepeats  = []string{"LockOnly", "Wait", "Require", "Retain", "Headers", "MaxBody", "Records", "Space"}
)

// newConfig panics, at wiring, when an option is wrong.
func newConfig(s source, opts []Option) config {
	c := config{
		retention: defaultRetention, recordIf: recordByDefault, headers: make(map[string]bool),
		maxBody: defaultMaxBody, maxRequestBody: defaultMaxBody,
		fingerprint: fingerprint, writeProblem: writeProblem,
	}
	for _, name := range recordedHeaders {
		c.headers[name] = true
	}
	for _, o := range opts {
		if o != nil {
			o.apply(&c)
		}
	}
	switch {
	case s.repeats:
		c.refuseOptions("RefuseRepeats has no use for %s: remove it", notWithRepeats...)
	case c.lockOnly:
		c.refuseOptions("LockOnly records nothing: remove %s", notWithLockOnly...)
		if !s.readsBody {
			c.refuseOptions("LockOnly does not read the body: remove %s", "MaxRequestBody")
		}
	default:
		c.check(!s.constant, "ByKey: without a field in the template every request would get the first answer: add one, or LockOnly()")
	}
	for m := range c.methods {
		c.check(c.lockOnly || !safe[m], "Methods(%q): it has no effect to record; name it with LockOnly only", m)
	}
	if len(c.mistakes) > 0 {
		panic(strings.Join(c.mistakes, "; "))
	}
	return c
}

func (c *config) refuseOptions(format string, names ...string) {
	var found []string
	for _, name := range c.used {
		if slices.Contains(names, name) && !slices.Contains(found, name) {
			found = append(found, name)
		}
	}
	c.check(len(found) == 0, format, strings.Join(found, ", "))
}
