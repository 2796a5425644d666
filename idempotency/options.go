package idempotency

import (
	"crypto/cipher"
	"net/http"
	"strings"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/claim"
)

// HTTPOption configures [ByHeader], [ByKey], [By] and [RefuseRepeats], and their twins in ginlock. A
// nil option is ignored. The last of two wins. A wrong option panics where the middleware is made.
type HTTPOption = claim.HTTPOption

// Option configures idempotency over HTTP and over gRPC.
type Option = claim.Option

// SharedOption configures idempotency and plain locks, over HTTP and over gRPC.
type SharedOption = claim.SharedOption

// LockOption configures [LockByKey] and [LockBy], and their twins in ginlock.
type LockOption = claim.HTTPLockOption

// WithLocker sets the Locker. The default is the one that was passed to [core.SetDefault].
func WithLocker(l *core.Locker) SharedOption {
	return claim.Shared(func(s *claim.Settings) {
		s.Locker = l
		s.Check(l != nil, "WithLocker(nil): check the error of core.New, or omit the option and call core.SetDefault")
	})
}

// Wait makes a request wait for up to d if another request with its key is running. It waits for
// that request's answer or, with a plain lock, for the lock. By default it is refused at once. A
// wait for a lock also bridges an outage of the backend of up to 10 s, unless [FailOpen] is set.
func Wait(d time.Duration) SharedOption {
	return claim.Shared(func(s *claim.Settings) {
		s.Wait = d
		s.Check(d >= 0, "Wait(%v): it must not be negative", d)
	})
}

// Require refuses requests without a key. By default they run unprotected.
func Require() SharedOption { return claim.Shared(func(s *claim.Settings) { s.Require = true }) }

// FailOpen runs requests unprotected when the backend is not available. Each of them is logged and
// counted. By default they are refused.
func FailOpen() SharedOption { return claim.Shared(func(s *claim.Settings) { s.FailOpen = true }) }

// Retain sets how long an answer is recorded, and how long an unknown outcome is remembered. After
// that the key runs anew. The default is 24 h, the least 10 ms, the most ten years. See [RetainFor] for one request.
func Retain(d time.Duration) Option {
	return claim.Shared(func(s *claim.Settings) {
		s.Retention = d
		s.Check(d >= claim.MinRetention && d <= claim.MaxRetention,
			"Retain(%v): it must be from %v to %v", d, claim.MinRetention, time.Duration(claim.MaxRetention))
	})
}

// MaxRun sets how long a handler may run. Then its context ends. The default is 5 min. The context of
// the client does not count: a handler finishes also if its client has hung up.
func MaxRun(d time.Duration) Option {
	return claim.Shared(func(s *claim.Settings) {
		s.MaxRun = d
		s.Check(d > 0, "MaxRun(%v): it must be positive", d)
	})
}

// RunAgain lets a retry run when the outcome of the first run is unknown or a server error. That is
// the case after a crash, a panic, a lost claim, or an answer of 500 and above. RunAgain is for
// handlers whose effects are all in one database transaction, or harmless to repeat.
func RunAgain() Option { return claim.Shared(func(s *claim.Settings) { s.RunAgain = true }) }

// MaxBody sets up to how many bytes of an answer are recorded. A larger answer is sent in full, and a
// retry is refused because the answer was not kept. The default is 1 MiB, the most 8 MiB.
func MaxBody(n int) Option {
	return claim.Shared(func(s *claim.Settings) {
		s.MaxBody = n
		s.Check(n >= 0 && n <= claim.LargestMaxBody, "MaxBody(%d): it must be from 0 to 8 MiB", n)
	})
}

// Quota sets how many requests of one principal may be at work in this process at once. Requests
// that run under a claim count, with a client or without, and so do those that [Wait]. More are
// refused with 429 before the backend is asked, and leave nothing behind. The default is 1,000. All
// middlewares of a service with one Locker count together. Anonymous callers are not counted. Quota
// does not bound how many answers are recorded: a rate limit outside, with [Retain] and [MaxBody],
// does.
func Quota(n int) Option {
	return claim.Shared(func(s *claim.Settings) {
		s.Quota = n
		s.Check(n > 0, "Quota(%d): it must be positive", n)
	})
}

// Service sets the name of this service. Keys of two services never meet. It is needed if two services
// share a Redis and a prefix (core.WithPrefix), because they may have the same routes.
func Service(name string) Option {
	return claim.Shared(func(s *claim.Settings) {
		s.Service = name
		s.Check(name != "", `Service(""): pass a name, or omit the option`)
	})
}

const (
	maxKeyID    = 32
	maxOverhead = 48 // of an AEAD, nonce included, so that an encrypted tag fits into the 256 bytes that core takes
)

// EncryptionKey is a key that records are encrypted with.
type EncryptionKey struct {
	// ID names the key in each record. It has 1 to 32 letters, digits, "-" and "_", and is not secret.
	ID string
	// AEAD encrypts. It must be safe for concurrent use, as those of the standard library are. Nonces
	// are random, and each request takes one or two. With the 96 bits of AES-GCM, use a new key after
	// 2^31 requests (NIST SP 800-38D, 8.3). XChaCha20-Poly1305 has no such limit.
	AEAD cipher.AEAD
}

// WithEncryption encrypts records, and the fingerprint of a request while it runs. Readers of the
// backend cannot read them, and writers can neither forge a record nor move it to another key or
// prefix. The names of keys stay readable.
//
// New records are encrypted with current. The older keys only read. To change the key, first let
// all processes know the new one as an older key. Then make it the current one, and remove the old
// one after the retention. A record that cannot be decrypted is never a new run: the request is
// refused. See [ReadPlain].
func WithEncryption(current EncryptionKey, older ...EncryptionKey) Option {
	return claim.Shared(func(s *claim.Settings) {
		s.Keys = nil
		seen := make(map[string]bool)
		for _, k := range append([]EncryptionKey{current}, older...) {
			s.Check(validKeyID(k.ID), "WithEncryption: the ID of a key, %q, must have 1 to %d letters, digits, \"-\" and \"_\"", k.ID, maxKeyID)
			s.Check(!seen[k.ID], "WithEncryption: two keys have the ID %q", k.ID)
			if k.AEAD == nil {
				s.Check(false, "WithEncryption: key %q has no AEAD", k.ID)
				return
			}
			adds := k.AEAD.NonceSize() + k.AEAD.Overhead()
			s.Check(adds <= maxOverhead, "WithEncryption: the AEAD of key %q adds %d bytes, at most %d are allowed", k.ID, adds, maxOverhead)
			seen[k.ID] = true
			s.Keys = append(s.Keys, claim.EncryptionKey(k))
		}
	})
}

func validKeyID(id string) bool {
	return id != "" && len(id) <= maxKeyID && strings.IndexFunc(id, func(r rune) bool {
		letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
		return !letter && r != '-' && r != '_'
	}) < 0
}

// ReadPlain lets a service with [WithEncryption] read records that are not encrypted. Use it while
// encryption is switched on: until all processes have it, and then for the retention. As long as it is
// set, writers of the backend can forge records.
func ReadPlain() Option { return claim.Shared(func(s *claim.Settings) { s.ReadPlain = true }) }

// httpConfig is the configuration of a middleware.
type httpConfig struct {
	claim.Settings
	router         Router
	methods        map[string]bool
	principal      func(*http.Request) string
	writeProblem   func(http.ResponseWriter, *http.Request, Refusal)
	decide         func(status int, header http.Header) Fate
	headers        map[string]bool
	maxRequestBody int
	fingerprint    func(r *http.Request, body []byte) []byte
	recover        func(http.ResponseWriter, *http.Request, Run) Recovery
}

type httpOption func(*httpConfig)

func (o httpOption) HTTP(t claim.Target) { o(t.(*httpConfig)) }

// frontOption is for plain locks, too.
type frontOption func(*httpConfig)

func (o frontOption) HTTP(t claim.Target)     { o(t.(*httpConfig)) }
func (o frontOption) HTTPLock(t claim.Target) { o(t.(*httpConfig)) }

// FrontOption configures idempotency and plain locks over HTTP.
type FrontOption interface {
	HTTPOption
	LockOption
}

// Methods sets which methods are covered. The default of idempotency is all but GET, HEAD, OPTIONS and
// TRACE, which have no effect to protect and must not be named. A plain lock covers all methods.
func Methods(methods ...string) FrontOption {
	return frontOption(func(c *httpConfig) {
		c.methods = make(map[string]bool, len(methods))
		for _, m := range methods {
			c.methods[strings.ToUpper(m)] = true
		}
		c.Check(len(methods) > 0, "Methods(): name at least one, or omit the option")
	})
}

// Principal sets the caller: a name that is verified and stays the same over retries, such as a user or
// tenant id. Keys of different principals have nothing to do with each other. "" is an anonymous
// caller.
//
// Without Principal all callers share one space of keys. A retry must then come with the credentials of
// the first request: the headers Authorization, Cookie and X-Api-Key, and a verified client
// certificate.
func Principal(fn func(*http.Request) string) FrontOption {
	return frontOption(func(c *httpConfig) {
		c.principal = fn
		c.Check(fn != nil, "Principal(nil): pass a function, or omit the option")
	})
}

// WithProblemWriter sets how refusals are written. The Retry-After header is set already. The default
// is application/problem+json (RFC 9457).
func WithProblemWriter(fn func(http.ResponseWriter, *http.Request, Refusal)) FrontOption {
	return frontOption(func(c *httpConfig) {
		c.writeProblem = fn
		c.Check(fn != nil, "WithProblemWriter(nil): pass a function, or omit the option")
	})
}

// MaxRequestBody sets how many bytes the body of a request may have, which is read before the handler
// runs. A larger one is refused with 413. The default is 1 MiB.
func MaxRequestBody(n int) FrontOption {
	return frontOption(func(c *httpConfig) {
		c.maxRequestBody = n
		c.Check(n >= 0, "MaxRequestBody(%d): it must not be negative", n)
	})
}

// Decide sets what becomes of the key after an answer with this status and header. 401 and 407 always
// free it. [DefaultFate] is the default.
func Decide(fn func(status int, header http.Header) Fate) HTTPOption {
	return httpOption(func(c *httpConfig) {
		c.decide = fn
		c.Check(fn != nil, "Decide(nil): pass a function, or omit the option")
	})
}

// Headers adds names to the headers that are recorded if the handler changed them. By default these
// are Content-Type, Content-Language, Content-Encoding, Content-Disposition, Content-Range,
// Location, ETag, Last-Modified, Link, Cache-Control, Vary and Retry-After. Set-Cookie,
// Authorization, WWW-Authenticate, Proxy-*, Date, Content-Length and the headers of the connection
// are never recorded.
func Headers(names ...string) HTTPOption {
	return httpOption(func(c *httpConfig) {
		for _, name := range names {
			c.Check(validToken(name), "Headers(%q): it is no header name", name)
			if name = http.CanonicalHeaderKey(name); !unrecorded(name) {
				c.headers[name] = true
			}
		}
	})
}

// Fingerprint replaces the part of the fingerprint that covers the query, the content type and the
// body. Method, host and path always count. The bytes are stored as a salted hash.
func Fingerprint(fn func(r *http.Request, body []byte) []byte) HTTPOption {
	return httpOption(func(c *httpConfig) {
		c.fingerprint = fn
		c.Check(fn != nil, "Fingerprint(nil): pass a function, or omit the option")
	})
}

// Recover makes fn decide about a request whose earlier run has an unknown outcome. The process of
// that run died, or its handler panicked or ran into a time-out. Without Recover a retry is
// refused.
//
// fn runs instead of the handler, under the claim, with the request of the retry. It finds out what
// the earlier run did, for example by asking the payment provider with [DeriveKey]. Then it returns
// [Answered] if it wrote the answer to w, [RunHandler] if nothing was done, or [StillUnknown].
func Recover(fn func(w http.ResponseWriter, r *http.Request, earlier Run) Recovery) HTTPOption {
	return httpOption(func(c *httpConfig) {
		c.recover, c.Recovers = fn, true
		c.Check(fn != nil, "Recover(nil): pass a function, or omit the option")
	})
}

// WithRouter sets how to ask a router that is not net/http's about a request.
func WithRouter(r Router) FrontOption {
	return frontOption(func(c *httpConfig) { c.router = r })
}

// Router answers questions about a request that routers answer differently. A nil function leaves
// net/http's answer.
type Router struct {
	// Pattern returns the pattern of the route, such as /orders/{id}, or "" if it is not known. The
	// default is r.Pattern. Without a pattern the path takes its place, and a key belongs to one path.
	Pattern func(r *http.Request) string
	// Param returns a parameter of the path. The default is r.PathValue.
	Param func(r *http.Request, name string) (value string, ok bool)
	// User returns the name of the caller that the framework has authenticated, or "". An error
	// refuses the request with 500. It is asked if there is no [Principal].
	User func(r *http.Request) (string, error)
	// Address returns the address of the client. The default is the host of r.RemoteAddr.
	Address func(r *http.Request) string
	// Body returns a body that was read already, or nil.
	Body func(r *http.Request) []byte
	// Bound reports whether the framework reads a JSON body of this request as JSON.
	Bound func(r *http.Request) bool
}
