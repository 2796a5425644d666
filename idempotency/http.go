package idempotency

import (
	"fmt"
	"net/http"
	"sync"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/claim"
	"github.com/onelane/onelane/internal/keytext"
)

// ByHeader returns a middleware that takes the key from the header of this name. The key k is sent
// in quotes, "k" (RFC 8941), or plain. It has 1 to 255 printable ASCII characters, and without
// quotes no comma. A request with any other value is refused with 400. Requests without the header
// run unprotected, unless [Require] is set.
//
// ByHeader panics if name cannot be the name of a header, or if an option is wrong. The Locker may
// be set later with [core.SetDefault]. Until then requests with a key get 503.
func ByHeader(name string, opts ...HTTPOption) func(http.Handler) http.Handler {
	s, err := headerSource(name)
	if err != nil {
		panic(fmt.Sprintf("idempotency: ByHeader(%q): %v", name, err))
	}
	return newMiddleware("ByHeader", s, opts)
}

// ByKey returns a middleware that makes the key of a template, for example
// "{header.X-Tenant}:{json.order.id}". Values are escaped as in [core.Join], and between two fields
// there must be a ":". The fields are:
//
//   - {header.NAME}: a header, as [ByHeader] reads it
//   - {param.NAME}: a parameter of the route's path
//   - {query.NAME}: a query parameter, which must not come twice. Read it by r.URL.Query, or c.Query of
//     Gin: r.FormValue and c.ShouldBind may take the value of a form instead
//   - {cookie.NAME}: a cookie, which must not come twice
//   - {json.PATH}: a text or a whole number in the JSON body: order.id is 7 in {"order":{"id":7}}
//   - {principal}: the caller, see [Principal]
//
// If a field is missing or empty, the request is refused with 400. If the template has {principal}
// and the caller is anonymous, it is refused with 401. Otherwise ByKey works as [ByHeader].
func ByKey(template string, opts ...HTTPOption) func(http.Handler) http.Handler {
	s, err := templateSource(template)
	if err == nil {
		err = s.Varies()
	}
	if err != nil {
		panic("idempotency: ByKey: " + err.Error())
	}
	return newMiddleware("ByKey", s, opts)
}

// By returns a middleware that takes the key from fn: a text without control characters, or "" if
// the request has none. Join parts that come from outside with [core.Join]. If fn returns an error,
// the request is refused with 400. The error is logged, and the client does not see it. A function
// that reads the body must put it back. Otherwise By works as [ByHeader].
func By(fn func(r *http.Request) (string, error), opts ...HTTPOption) func(http.Handler) http.Handler {
	if fn == nil {
		panic("idempotency: By(nil): pass a function that returns the key of a request")
	}
	return newMiddleware("By", funcSource(fn), opts)
}

// middleware is what one call of ByHeader, ByKey or By made.
type middleware struct {
	front
	claims claim.Cache

	mu     sync.Mutex
	warned map[warning]bool
}

func newMiddleware(name string, s source, opts []HTTPOption) func(http.Handler) http.Handler {
	m := &middleware{front: newFront(s, opts), warned: make(map[warning]bool)}
	for method := range m.methods {
		m.Check(!safe[method], "Methods(%q): the method has no effect to record", method)
	}
	m.NeedsSeals()
	w := m.wiring(name, m.covers)
	w.Keyed, w.Seals = true, true
	return m.wrap(w, m.serve)
}

// serve runs a request, replays its answer or refuses it.
func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if !m.covers(r.Method) {
		next.ServeHTTP(w, r)
		return
	}
	key, none, ok := m.key(w, r)
	switch {
	case !ok:
		return
	case none:
		if l := m.UseLocker(); l != nil {
			m.claims.On(l, "http", m.Settings).CountWithoutKey(r.Context(), m.route(r))
		}
		next.ServeHTTP(w, r)
		return
	}
	l := m.lockerInUse(w, r)
	if l == nil {
		return
	}
	who, err := m.who(r)
	if err != nil {
		m.misconfigured(w, r, "idempotency: the caller is not known: pass Principal", "error", err)
		return
	}
	req := claim.Request{Key: m.claimKey(r, who, key), ID: requestID(r), Route: m.route(r), HalfCloses: r.ProtoMajor == 1}
	req.Deadline, _ = r.Context().Deadline()
	if claim.Carries(r.Context(), req.Key) {
		m.misconfigured(w, r, "idempotency: two middlewares guard one route with the same key, and the options of the inner one would be ignored: keep one of them")
		return
	}
	body, err := m.readBody(r)
	if err != nil {
		m.refuseBody(w, r, err)
		return
	}
	req.Fingerprint = m.fingerprintOf(r, body)
	if who == "" {
		m.warnOnce(r, "idempotency: no principal is known, so all callers share one space of keys, and a retry must come with the same credentials: pass Principal")
		req.Fingerprint.Credentials = credentials(r)
	}
	x := &protected{exchange{front: &m.front, w: w, r: r, next: next}, m}
	m.claims.On(l, "http", m.Settings).Serve(r.Context(), req, x)
}

// claimKey joins everything that a key belongs to, so that no part can imitate another. Everything
// else is in the fingerprint: a key that comes with another request must not run.
func (m *middleware) claimKey(r *http.Request, who, key string) string {
	if !m.Content {
		return core.Join(m.Service, who, m.Name, key)
	}
	pattern := m.route(r)
	if pattern == "" {
		pattern = r.URL.EscapedPath()
	}
	return core.Join(m.Service, who, m.Name, r.Method, mount(r)+pattern, key)
}

// requestID returns the request's id, or "".
func requestID(r *http.Request) string {
	id, err := keytext.Value(r.Header.Get("X-Request-Id"))
	if err != nil {
		return ""
	}
	return id
}

// protected is a request whose answer is recorded before it is sent.
type protected struct {
	exchange
	m *middleware
}

// Start implements claim.Transport.
func (x *protected) Start(k *claim.Claim) {
	x.exchange.Start(k)
	x.rec.passing = false
	expectRoute(&x.router, x.inner)
}

// Facts implements claim.Transport.
func (x *protected) Facts() claim.Facts {
	x.answerSilent(&x.rec, x.inner)
	x.rec.unrouted = noRoute(&x.router, x.inner, x.rec.final())
	return x.facts(&x.rec)
}

// End implements claim.Transport.
func (x *protected) End(f claim.Fate) {
	rec, record := &x.rec, *claim.Tombstone()
	switch {
	case f == claim.Unanswered:
		x.m.warnOnce(x.r, "idempotency: the handler left its answer to a middleware outside of this one, so it cannot be recorded: put the error writer inside")
	case f == claim.Keep && !rec.passing && !rec.cut():
		record = rec.record(x.headers)
	}
	x.claim.End(f, &record)
	if !rec.passing {
		if f == claim.Keep && !rec.wrote {
			rec.WriteHeader(rec.final()) // the record says so
		}
		_ = rec.send(false) // an error means that the client is gone
	}
}

// Replay implements claim.Transport.
func (x *protected) Replay(r *claim.Record) { x.replay(x.w, x.r, r) }

// replay answers with a record.
func (f *front) replay(w http.ResponseWriter, r *http.Request, record *claim.Record) {
	if record.NotKept || record.Status < 200 || record.Status > 999 {
		f.refuse(w, r, refusals[CodeResponseNotKept])
		return
	}
	h := w.Header()
	for name, values := range record.Header {
		if !f.headers[name] { // recorded under other options, or forged
			continue
		}
		_, outside := h[name]
		switch {
		case len(values) > 0:
			h[name] = values
		case outside: // the handler removed it
			delete(h, name)
		default: // it said that there is none, and net/http must not guess one
			h[name] = nil
		}
	}
	h.Set("Idempotency-Replayed", "true")
	if id := record.Run.RequestID; id != "" {
		h.Set("Idempotency-Original-Request", id)
	}
	w.WriteHeader(record.Status)
	if len(record.Body) > 0 {
		_, _ = w.Write(record.Body) // an error means that the client is gone
	}
}

// warning is about a route.
type warning struct{ text, route string }

// warnOnce logs a warning once for each route.
func (m *middleware) warnOnce(r *http.Request, text string) {
	w := warning{text, m.route(r)}
	m.mu.Lock()
	known := m.warned[w]
	m.warned[w] = true
	m.mu.Unlock()
	if !known {
		m.Logger().Warn(text, "route", w.route)
	}
}
