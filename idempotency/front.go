package idempotency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/claim"
	"github.com/onelane/onelane/internal/keytemplate"
	"github.com/onelane/onelane/internal/keytext"
)

// front is the part of a middleware that idempotency and plain locks share.
type front struct {
	httpConfig
	source
}

func newConfig() httpConfig {
	c := httpConfig{
		Settings: claim.DefaultSettings(), decide: DefaultFate, headers: make(map[string]bool),
		maxRequestBody: claim.DefaultMaxBody, writeProblem: writeProblem,
	}
	for _, name := range recordedHeaders {
		c.headers[name] = true
	}
	return c
}

// newFront returns the front of a middleware with these options.
func newFront[O HTTPOption](s source, opts []O) front {
	f := front{httpConfig: newConfig(), source: s}
	for _, o := range opts {
		if any(o) != nil {
			o.HTTP(&f.httpConfig)
		}
	}
	return f
}

// wrap returns the middleware that serves with this function. It panics if an option is wrong.
func (f *front) wrap(
	w claim.Wiring, serve func(http.ResponseWriter, *http.Request, http.Handler),
) func(http.Handler) http.Handler {
	if text := f.Err(); text != "" {
		panic("idempotency: " + w.Name + ": " + text)
	}
	return func(next http.Handler) http.Handler { return &handler{serve, next, w} }
}

// safe are the methods that have no effect to protect (RFC 9110, 9.2.1).
var safe = map[string]bool{http.MethodGet: true, http.MethodHead: true, http.MethodOptions: true, http.MethodTrace: true}

// covers reports whether requests of this method are protected by idempotency.
func (f *front) covers(method string) bool {
	if f.methods != nil {
		return f.methods[method]
	}
	return !safe[method]
}

// key returns the key of a request. ok is false if the request was answered.
func (f *front) key(w http.ResponseWriter, r *http.Request) (key string, none, ok bool) {
	key, err := f.Read(reading{f, r})
	switch {
	case err == keytext.ErrNoKey && !f.Require: // the error of a template's field is wrapped
		return "", true, true
	case err != nil:
		f.refuseKey(w, r, err)
		return "", false, false
	}
	return key, false, true
}

// lockerInUse returns the Locker, or nil if the request was answered because there is none.
func (f *front) lockerInUse(w http.ResponseWriter, r *http.Request) *core.Locker {
	l := f.UseLocker()
	if l == nil {
		slog.ErrorContext(r.Context(), "idempotency: there is no Locker: call core.SetDefault when the process starts, or pass idempotency.WithLocker", "route", f.route(r))
		p := refusals[CodeLockUnavailable]
		p.Detail = "The server was started without a Locker: it has to call core.SetDefault."
		f.refuse(w, r, p)
	}
	return l
}

// route returns the name of the route for logs and metrics.
func (f *front) route(r *http.Request) string { return f.router.pattern(r) }

// method returns the name of the method for the log. Each name has its own log lines, and a client
// may send any name, of any length.
func (f *front) method(r *http.Request) string {
	switch r.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodConnect:
		return r.Method
	}
	if safe[r.Method] || f.methods[r.Method] {
		return r.Method
	}
	return "other"
}

// refuseKey answers a request whose key could not be read.
func (f *front) refuseKey(w http.ResponseWriter, r *http.Request, err error) {
	if body, ok := errors.AsType[*bodyError](err); ok {
		f.refuseBody(w, r, body.error)
		return
	}
	if who, ok := errors.AsType[*whoError](err); ok {
		f.misconfigured(w, r, "idempotency: the caller is not known: pass Principal", "error", who.error)
		return
	}
	if field, ok := errors.AsType[*keytemplate.FieldError](err); ok && field.Err == errNoSuchPart {
		f.misconfigured(w, r, "idempotency: the route has no such parameter: name one of its own", "parameter", field.Place)
		return
	}
	code, detail, correction := f.Refused(err)
	p := refusals[code]
	p.Detail, p.Correction = detail, cmp.Or(correction, p.Correction)
	f.refuse(w, r, p)
}

// refuseBody answers a request whose body could not be read.
func (f *front) refuseBody(w http.ResponseWriter, r *http.Request, err error) {
	var outside *http.MaxBytesError
	code := CodeRequestUnreadable
	switch {
	case err == errGone:
		f.misconfigured(w, r, "idempotency: the body cannot be read, so a retry could not be told from another request", "error", err)
		return
	case errors.Is(err, errTooLarge), errors.As(err, &outside):
		code = CodeRequestTooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		code = CodeRequestTimeout
	}
	p := refusals[code]
	if code == CodeRequestTooLarge {
		most := int64(f.maxRequestBody)
		if outside != nil {
			most = outside.Limit
		}
		p.Detail = fmt.Sprintf("At most %d bytes are allowed.", most)
	}
	f.refuse(w, r, p)
}

// misconfigured answers a request that cannot be protected because of a mistake in the program.
func (f *front) misconfigured(w http.ResponseWriter, r *http.Request, text string, args ...any) {
	f.Logger().ErrorContext(r.Context(), text, append(args, "route", f.route(r), "method", f.method(r))...)
	f.refuse(w, r, refusals[CodeMisconfigured])
}

// refuseErr answers a request that got no claim and no lock.
func (f *front) refuseErr(w http.ResponseWriter, r *http.Request, err error) {
	code, loud := claim.CodeOf(err)
	if loud {
		f.log(r, slog.LevelError, "idempotency: the request is refused", err)
	}
	p := refusals[code]
	if part := claim.Differs(err); part != "" {
		f.Logger().WarnContext(r.Context(), "idempotency: a key came with another request; the request is refused",
			"differs", part, "route", f.route(r), "method", f.method(r))
		p = p.differing(part)
	}
	f.refuse(w, r, p)
}

// facts returns what is known of what the handler has answered so far.
func (f *front) facts(rec *recorder) claim.Facts {
	status, header := rec.final(), rec.header()
	if outside := rec.before["Retry-After"]; len(outside) > 0 && slices.Equal(outside, header["Retry-After"]) {
		header = header.Clone()
		header.Del("Retry-After") // the handler did not say that it did nothing
	}
	verdict := claim.Fate(f.decide(status, header))
	return claim.Facts{
		NoHandler:       rec.refusal || rec.unrouted,
		GaveUp:          status >= 500 && rec.claim.Context().Err() != nil,
		Unauthenticated: status == http.StatusUnauthorized || status == http.StatusProxyAuthRequired,
		NoAnswer:        status < 200 && status != http.StatusSwitchingProtocols || status > 999,
		Verdict:         verdict,
		ServerError:     status >= 500,
		RanElsewhere:    verdict == claim.Free && rec.passedOn(),
	}
}

// logUnprotected logs a request that runs although the backend is not available.
func (f *front) logUnprotected(r *http.Request, err error) {
	f.warn(r, "idempotency: the backend is not available; the request runs unprotected (FailOpen)", err)
}

func (f *front) warn(r *http.Request, text string, err error) { f.log(r, slog.LevelWarn, text, err) }

func (f *front) log(r *http.Request, level slog.Level, text string, err error) {
	f.Logger().Log(context.WithoutCancel(r.Context()), level, text, "route", f.route(r), "method", f.method(r), "error", err)
}
