package idempotency

import (
	"crypto/cipher"
	"net/http"
	"strings"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/claim"
)

// HTTPOption configures [ByHeader], [ByKey], [By] and [RefuseRepeats], and their twins in ginlock.
// A nil option is ignored. The last of two wins. A wrong option panics where the middleware is
// made.
type HTTPOption interface{ claim.HTTPOption }

// Option configures idempotency over HTTP, over gRPC and of [Do].
type Option interface {
	HTTPOption
	DoOption
	claim.GRPCOption
}

// WaitOption configures [Do], idempotency over HTTP and over gRPC, and plain locks.
type WaitOption interface {
	SharedOption
	DoOption
}

// SharedOption configures idempotency and plain locks, over HTTP and over gRPC.
type SharedOption interface {
	LockOption
	claim.GRPCLockOption
}

// LockOption configures [LockByKey] and [LockBy], and their twins in ginlock. Every LockOption is
// an [HTTPOption], too.
type LockOption interface{ claim.HTTPLockOption }

// WithLocker sets the Locker. The default is the one that was passed to [core.SetDefault].
func WithLocker(l *core.Locker) SharedOption {
	return claim.Shared(func(s *claim.Settings) {
		s.Locker = l
		s.Check(l != nil, "WithLocker(nil): check the error of core.New, or omit the option and call core.SetDefault")
	})
}

// Wait makes a request wait for up to d if another request with its key is running. It waits for
// that request's answer or, with a plain lock, for the lock. Without Wait the request is refused at
// once. A wait for a lock also bridges an outage of the backend of up to 10 s, unless [FailOpen] is
// set.
func Wait(d time.Duration) WaitOption {
	return claim.Shared(func(s *claim.Settings) {
		s.Wait = d
		s.Check(d >= 0, "Wait(%v): it must not be negative", d)
	})
}

// Require refuses requests without a key. By default they run unprotected.
func Require() SharedOption { return claim.Shared(func(s *claim.Settings) { s.Require = true }) }

// FailOpen runs requests unprotected when the backend is not available. They are logged, at most
// once every 10 s for each route and method. Requests with an idempotency key are counted. By
// default requests are refused.
func FailOpen() SharedOption { return claim.Shared(func(s *claim.Settings) { s.FailOpen = true }) }

// Retain sets how long an answer is recorded, and how long an unknown outcome is remembered. After
// that, a request with the key runs anew. The default is 24 h, the minimum 10 ms and the maximum
// ten years. [RetainFor] sets it for one request.
func Retain(d time.Duration) Option {
	return claim.Shared(func(s *claim.Settings) {
		s.Retention = d
		s.Check(d >= claim.MinRetention && d <= claim.MaxRetention,
			"Retain(%v): it must be from %v to %v", d, claim.MinRetention, time.Duration(claim.MaxRetention))
	})
}

// MaxRun sets how long a handler may run before its context ends. The default is 5 min. The
// client's context does not count: a handler runs to its end even if its client has hung up. If
// the handler's context ended and the handler has written nothing, the answer over HTTP is 409
// idempotency_outcome_unknown.
func MaxRun(d time.Duration) Option {
	return claim.Shared(func(s *claim.Settings) {
		s.MaxRun = d
		s.Check(d > 0, "MaxRun(%v): it must be positive", d)
	})
}

// RunAgain lets a retry run when the outcome of the first run is unknown or a server error. It is for
// handlers that are harmless to repeat after they have succeeded. One database transaction is not
// enough: it may have been committed before the crash or the 500. Put it into gormlock.Once with
// gormlock.ClaimKey.
//
//   - The outcome is unknown after a crash, a panic, a lost claim, or an answer such as 408 or
//     Canceled (see [DefaultFate]).
//   - Server errors are 500 and above or, over gRPC, Internal, Unknown and DataLoss.
//
// The key stays with its payload: a request with another one is refused. If a middleware inside
// answered with a time-out and its handler goes on, the retry runs beside it.
//
// Deploy such a handler first, and RunAgain when no process runs the handler before it. The outcome
// of a run without RunAgain stays unknown, and so does that of a run with RunAgain to a process
// without it.
func RunAgain() Option { return claim.Shared(func(s *claim.Settings) { s.RunAgain = true }) }

// MaxBody sets the largest body of an answer that is recorded, in bytes. A larger answer is sent in
// full and not kept, so a retry is refused. The default is 1 MiB and the maximum 8 MiB.
func MaxBody(n int) Option {
	return claim.Shared(func(s *claim.Settings) {
		s.MaxBody = n
		s.Check(n >= 0 && n <= claim.LargestMaxBody, "MaxBody(%d): it must be from 0 to 8 MiB", n)
	})
}

// Service sets the name of this service. Keys of two services never meet. It is needed if two
// services share a Redis and a prefix (core.WithPrefix), because they may have the same routes.
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
	// AEAD encrypts. It must be safe for concurrent use, as those of the standard library are.
	// Nonces are random. Each request takes one or two, one more after [Recover], and two for each
	// [Step]. With the 96 bits of AES-GCM, use a new key after 2^32 nonces (NIST SP 800-38D, 8.3).
	// These are 2^31 requests without a Step, or 2^29 with three. XChaCha20-Poly1305 has no such
	// limit.
	AEAD cipher.AEAD
}

// WithEncryption encrypts records, and the fingerprint of a request while it runs. Readers of the
// backend cannot read them, and writers can neither forge a record nor move it to another key or
// prefix. The names of keys stay readable.
//
// New records are encrypted with current. The older keys only decrypt. To change the key, first
// pass the new key as an older key in all processes. Then pass it as current. Remove the old key
// when the retention has passed. If a record cannot be decrypted, the request is refused and never
// runs. See [ReadPlain].
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

// ReadPlain lets a service with [WithEncryption] read records that are not encrypted. Use it when
// you turn on encryption: until all processes have encryption, and for the retention after that. As
// long as it is set, writers of the backend can forge records.
func ReadPlain() Option { return claim.Shared(func(s *claim.Settings) { s.ReadPlain = true }) }

// httpConfig is the configuration of a middleware.
type httpConfig struct {
	claim.Settings
	router         router
	methods        map[string]bool
	principal      func(*http.Request) string
	writeProblem   func(http.ResponseWriter, *http.Request, Refusal)
	decide         func(status int, header http.Header) Fate
	headers        map[string]bool
	maxRequestBody int
	anyHost        bool
	fingerprint    func(r *http.Request, body []byte) []byte
	// fingerprintHeaders are canonical names.
	fingerprintHeaders []string
	recover            func(http.ResponseWriter, *http.Request, Run) Recovery
}

type httpOption func(*httpConfig)

func (o httpOption) HTTP(t claim.Target) { o(t.(*httpConfig)) }

type lockOption func(*httpConfig)

func (o lockOption) HTTP(t claim.Target) { o(t.(*httpConfig)) }
func (lockOption) HTTPLock()             {}

// UseRouter is what a [claim.Router] calls.
func (c *httpConfig) UseRouter(r claim.Router) { c.router = router(r) }

// Methods sets which methods are covered. By default idempotency covers all methods except GET,
// HEAD, OPTIONS and TRACE. These have no effect to protect, and naming one for idempotency panics.
// A plain lock covers all methods by default. Each name is one method: "POST, PUT" panics.
func Methods(methods ...string) LockOption {
	return lockOption(func(c *httpConfig) {
		c.methods = make(map[string]bool, len(methods))
		for _, m := range methods {
			c.Check(validToken(m), "Methods(%q): it is no method; pass each one by itself, without spaces", m)
			c.methods[strings.ToUpper(m)] = true
		}
		c.Check(len(methods) > 0, "Methods(): name at least one, or omit the option")
	})
}

// Principal sets the caller: a name that is verified and stays the same over retries, such as a
// user or tenant id. Keys of different principals are independent of each other. If fn returns "",
// the caller is anonymous. The key of a plain lock contains the caller only if its template has
// {principal}.
//
// Without Principal all callers share one space of keys. A retry must then come with the
// credentials of the first request: the headers Authorization, Cookie and X-Api-Key, and a verified
// client certificate.
func Principal(fn func(*http.Request) string) LockOption {
	return lockOption(func(c *httpConfig) {
		c.principal = fn
		c.Check(fn != nil, "Principal(nil): pass a function, or omit the option")
	})
}

// WithProblemWriter sets how refusals are written. The Retry-After header is set already. The
// default is application/problem+json (RFC 9457).
func WithProblemWriter(fn func(http.ResponseWriter, *http.Request, Refusal)) LockOption {
	return lockOption(func(c *httpConfig) {
		c.writeProblem = fn
		c.Check(fn != nil, "WithProblemWriter(nil): pass a function, or omit the option")
	})
}

// MaxRequestBody sets the largest body of a request with a key, in bytes. The body is read before
// the handler runs. A request with a larger body is refused with 413. The default is 1 MiB. A plain
// lock reads the body, and so limits it, only if its template has {json.PATH}.
func MaxRequestBody(n int) LockOption {
	return lockOption(func(c *httpConfig) {
		c.maxRequestBody = n
		c.Check(n >= 0, "MaxRequestBody(%d): it must not be negative", n)
	})
}

// Decide sets what becomes of the key after an answer with this status and header. 401 and 407
// always free it. [DefaultFate] is the default. The answer may be another server's refusal that
// says that the request ran or is running. If fn frees the key then, the outcome is unknown.
func Decide(fn func(status int, header http.Header) Fate) HTTPOption {
	return httpOption(func(c *httpConfig) {
		c.decide = fn
		c.Check(fn != nil, "Decide(nil): pass a function, or omit the option")
	})
}

// Headers adds names to the headers that are recorded if the handler changed them. By default these
// are Content-Type, Content-Language, Content-Encoding, Content-Disposition, Content-Range,
// Location, ETag, Last-Modified, Link, Cache-Control, Vary, Retry-After and X-Content-Type-Options.
// Set-Cookie, Authorization, WWW-Authenticate, Proxy-*, Date, Content-Length and the headers of the
// connection are never recorded.
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

// AnyHost lets a retry come under another name of the service. By default the same key under another
// host is refused with 422, because it may be another tenant's. Set AnyHost if clients reach the
// service by the addresses of its instances, or through a proxy that rewrites the Host header, as
// [httputil.ReverseProxy] does. If tenants have their own hosts, put the tenant into [Principal].
// Upper case, the ports 80 and 443 and a dot at the end never make another host.
//
// Keys of [DeriveKey], [Step] and gormlock.ClaimKey contain the host without AnyHost, and do not with
// it. So set it before the first request, or when no outcome is unknown.
func AnyHost() HTTPOption { return httpOption(func(c *httpConfig) { c.anyHost = true }) }

// FingerprintHeaders adds headers to what a retry must repeat, for example one that names a tenant
// or overrides the method. By default these are Content-Type and Content-Encoding.
func FingerprintHeaders(names ...string) HTTPOption {
	return httpOption(func(c *httpConfig) {
		for _, name := range names {
			c.Check(validToken(name), "FingerprintHeaders(%q): it is no header name", name)
			c.fingerprintHeaders = append(c.fingerprintHeaders, http.CanonicalHeaderKey(name))
		}
	})
}

// Fingerprint replaces the part of the fingerprint that covers the query, the content type and the
// body. Method, host and path always count. The bytes are stored as a salted hash.
//
// If a middleware outside, or the function of [By], has parsed the body as a form, fn gets that
// form encoded anew, with sorted names. If it was a multipart form, body is empty: the form is in
// r.MultipartForm.
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
