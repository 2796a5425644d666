package ginlock

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
)

// The codes of a [Problem]. They are stable.
const (
	CodeKeyMissing         = "idempotency_key_missing"         // 400, see Require
	CodeKeyInvalid         = "idempotency_key_invalid"         // 400
	CodeKeyReused          = "idempotency_key_reused"          // 422: with another request
	CodeCredentialsChanged = "idempotency_credentials_changed" // 422
	CodeOtherTransport     = "idempotency_other_transport"     // 422: the first request came by gRPC, see Space
	CodeInFlight           = "idempotency_in_flight"           // 409: the first still runs
	CodeResponseNotKept    = "idempotency_response_not_kept"   // 409: it ran, and its answer was not recorded
	CodeDuplicateSubmit    = "duplicate_submit"                // 409, see RefuseRepeats
	CodeLockBusy           = "lock_busy"                       // 409
	CodeLockSealed         = "lock_sealed"                     // 409: the application sealed the lock's key
	CodeLockLost           = "lock_lost"                       // 409: while the handler ran
	CodeLockUnavailable    = "lock_unavailable"                // 503: Redis is down, or there is no Locker; 409: the key is orphaned
	CodeRequestTooLarge    = "request_too_large"               // 413, see MaxRequestBody
	CodeRequestTimeout     = "request_timeout"                 // 408: the body came too slowly
	CodeRequestUnreadable  = "request_unreadable"              // 400: the body could not be read
	CodeMisconfigured      = "misconfigured"                   // 500: a mistake in the wiring, which is logged
)

// Problem is a refusal of this package, in the words of RFC 9457. Its JSON is what clients get.
type Problem struct {
	// Type is a URI that ends in the code.
	Type string `json:"type"`
	// Title says what the code means.
	Title  string `json:"title"`
	Status int    `json:"status"`
	// Detail says more about this request; it may be empty.
	Detail string `json:"detail,omitempty"`
	// Code is one of the constants of this package.
	Code string `json:"code"`
	// Retryable says that the same request may succeed later.
	Retryable bool `json:"retryable"`
	// Correction says what to change before it is sent again; empty where nothing needs to be.
	Correction string `json:"correction,omitempty"`
	// RetryAfter is sent as the Retry-After header, in whole seconds; 0: not sent.
	RetryAfter time.Duration `json:"-"`
}

const problemType = "https://pkg.go.dev/github.com/onelane/onelane/ginlock#"

// soon is when to try again: most requests take less. When a lease ends would be too late: that is for those that died.
const soon = time.Second

var (
	problemKeyMissing  = Problem{Status: 400, Code: CodeKeyMissing, Title: "The idempotency key is missing"}
	problemKeyInvalid  = Problem{Status: 400, Code: CodeKeyInvalid, Title: "The idempotency key is invalid"}
	problemReused      = Problem{Status: 422, Code: CodeKeyReused, Title: "The idempotency key was used with another request", Correction: "Send a new request with a new key, or a retry exactly as the first."}
	problemCredentials = Problem{Status: 422, Code: CodeCredentialsChanged, Title: "The idempotency key was used with other credentials", Correction: "Send the retry with the credentials of the first request, or a new request with a new key."}
	problemTransport   = Problem{Status: 422, Code: CodeOtherTransport, Title: "The idempotency key was used over another protocol", Correction: "Send the retry as the first was sent, or a new request with a new key."}
	problemInFlight    = Problem{Status: 409, Code: CodeInFlight, Title: "A request with this idempotency key is still running", Retryable: true, RetryAfter: soon}
	problemNotKept     = Problem{Status: 409, Code: CodeResponseNotKept, Title: "The request was answered before, and its answer was not kept", Correction: "Look up the result of the first request, or send a new one with a new key."}
	problemBusy        = Problem{Status: 409, Code: CodeLockBusy, Title: "Another request is working on this", Retryable: true, RetryAfter: soon}
	problemSealed      = Problem{Status: 409, Code: CodeLockSealed, Title: "This is closed for further requests"}
	problemLost        = Problem{Status: 409, Code: CodeLockLost, Title: "The lock was lost while the request ran", Correction: "Check what became of the request before it is sent again."}
	problemUnavailable = Problem{Status: 503, Code: CodeLockUnavailable, Title: "Locks are not available", Retryable: true, RetryAfter: soon}
	problemOrphaned    = Problem{Status: 409, Code: CodeLockUnavailable, Title: "The outcome of an earlier request is unknown", Correction: "Ask the operator of the service to check what the earlier request did."}
	problemNoLocker    = Problem{Status: 503, Code: CodeLockUnavailable, Title: "Locks are not available", Detail: "The server was started without a Locker: it has to call core.SetDefault.", Retryable: true, RetryAfter: soon}
	problemTooLarge    = Problem{Status: 413, Code: CodeRequestTooLarge, Title: "The request's body is too large"}
	problemTimeout     = Problem{Status: 408, Code: CodeRequestTimeout, Title: "The request's body came too slowly", Retryable: true}
	problemUnreadable  = Problem{Status: 400, Code: CodeRequestUnreadable, Title: "The request's body could not be read", Retryable: true}
	problemWiring      = Problem{Status: 500, Code: CodeMisconfigured, Title: "The server is misconfigured"}
)

type refusedKey struct{}

// refuse answers with p instead of the handler. What ran outside of this middleware does not record it.
func (m *middleware) refuse(c *gin.Context, p Problem) {
	p.Type = problemType + p.Code
	if p.RetryAfter > 0 {
		c.Header("Retry-After", strconv.FormatInt(int64((p.RetryAfter+time.Second-1)/time.Second), 10))
	}
	c.Set(refusedKey{}, true)
	c.Abort()
	m.writeProblem(c, p)
}

func writeProblem(c *gin.Context, p Problem) {
	body, _ := json.Marshal(p) // cannot fail: text, numbers and a bool
	c.Data(p.Status, "application/problem+json", body)
}

// refuseKey answers a request whose key could not be read.
func (m *middleware) refuseKey(c *gin.Context, err error) {
	place, form := m.place, m.form
	var f *fieldError
	if errors.As(err, &f) {
		place, form, err = f.place, f.form, f.err
	}
	var body *bodyError
	var who *whoError
	switch {
	case errors.As(err, &body):
		m.refuseBody(c, body.error)
	case errors.As(err, &who):
		m.misconfigured(c, "ginlock: who asks is not known: pass ginlock.Principal", "error", who.error)
	case err == errNoSuchPart:
		m.misconfigured(c, "ginlock: the route has no such parameter: name one of its own", "parameter", place)
	case err == idempotency.ErrNoKey:
		p := problemKeyMissing
		p.Correction = "Send " + place + ": " + form
		m.refuse(c, p)
	default:
		p := problemKeyInvalid
		p.Detail, p.Correction = "Of "+place+": "+err.Error()+".", "Send "+place+": "+form
		m.refuse(c, p)
	}
}

// misconfigured answers a request that cannot be protected because of a mistake in the program.
func (m *middleware) misconfigured(c *gin.Context, text string, args ...any) {
	m.logger().ErrorContext(c.Request.Context(), text, append(args, "route", c.FullPath(), "method", c.Request.Method)...)
	m.refuse(c, problemWiring)
}

// refuseErr answers a request that got no lock or claim.
func (m *middleware) refuseErr(c *gin.Context, err error) {
	var mismatch *idempotency.MismatchError
	switch {
	case errors.As(err, &mismatch) && mismatch.Credentials:
		m.refuse(c, problemCredentials)
	case mismatch != nil && mismatch.Transport != "":
		m.refuse(c, problemTransport)
	case mismatch != nil:
		m.refuse(c, problemReused)
	case errors.Is(err, idempotency.ErrInFlight) && m.repeats:
		m.refuse(c, problemRepeat)
	case errors.Is(err, idempotency.ErrInFlight):
		m.refuse(c, problemInFlight)
	case errors.Is(err, idempotency.ErrRecord):
		m.log(c, slog.LevelError, "ginlock: a record cannot be read; the request is refused", err)
		if m.repeats {
			m.refuse(c, problemRepeat)
		} else {
			m.refuse(c, problemNotKept)
		}
	case errors.Is(err, core.ErrTaken):
		m.refuse(c, problemBusy)
	case errors.Is(err, core.ErrSealed):
		m.refuse(c, problemSealed)
	case errors.Is(err, core.ErrOrphaned):
		m.log(c, slog.LevelError, "ginlock: the key is orphaned; the request is refused until the key is unsealed", err)
		m.refuse(c, problemOrphaned)
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded): // of the request, whose client is gone
		m.refuse(c, problemUnavailable)
	default:
		m.log(c, slog.LevelError, "ginlock: no lock can be had; the request is refused", err)
		m.refuse(c, problemUnavailable)
	}
}

func (m *middleware) log(c *gin.Context, level slog.Level, text string, err error) {
	m.logger().Log(c.Request.Context(), level, text, "route", c.FullPath(), "method", c.Request.Method, "error", err)
}

// logger is that of the Locker, where there is one.
func (m *middleware) logger() *slog.Logger {
	l := m.locker
	if l == nil {
		l = core.Default()
	}
	if l == nil {
		return slog.Default()
	}
	return l.Logger()
}

// runUnprotected says whether a request is to run although Redis is not available. One whose client is gone is not: its error is that of
// its context.
func (m *middleware) runUnprotected(c *gin.Context, err error) bool {
	if !m.failOpen || !errors.Is(err, core.ErrUnavailable) {
		return false
	}
	m.logUnprotected(c, err)
	return true
}

func (m *middleware) logUnprotected(c *gin.Context, err error) {
	m.log(c, slog.LevelWarn, "ginlock: no lock can be had; the request runs unprotected (FailOpen)", err)
}

// replay answers with what was recorded.
func (m *middleware) replay(c *gin.Context, r *idempotency.Record) {
	if r.NotKept || r.Status < 200 || r.Status > 999 {
		m.refuse(c, problemNotKept)
		return
	}
	h := c.Writer.Header()
	for name, values := range r.Header {
		if !m.headers[name] { // whoever recorded it had other options, or forged it
			continue
		}
		if len(values) == 0 {
			delete(h, name)
		} else {
			h[name] = values
		}
	}
	h.Set("Idempotency-Replayed", "true")
	c.Abort()
	c.Status(r.Status)
	if len(r.Body) == 0 {
		c.Writer.WriteHeaderNow()
	} else if _, err := c.Writer.Write(r.Body); err != nil {
		_ = c.Error(err)
	}
}

// recordByDefault leaves out what says nothing about the request itself: try again, log in, slow down.
func recordByDefault(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusProxyAuthRequired, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status < 500
}
