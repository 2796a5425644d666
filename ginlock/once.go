package ginlock

import (
	"errors"
	"log/slog"
	"net/http"
	"slices"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
)

// serveOnce runs a request, replays its answer or refuses it.
func (m *middleware) serveOnce(c *gin.Context, l *core.Locker, key string) {
	who, err := m.who(c)
	if err != nil {
		m.misconfigured(c, "ginlock: who asks is not known: pass ginlock.Principal", "error", err)
		return
	}
	if m.space != "" {
		key = idempotency.SpaceKey(m.space, who, key)
	} else {
		key = core.Join(who, c.Request.Method, c.FullPath(), m.name, key)
	}
	if idempotency.Carries(c.Request.Context(), key) {
		return // used twice, on a group and on a route: the outer one does it
	}
	body, err := m.readBody(c)
	if err != nil {
		m.refuseBody(c, err)
		return
	}
	fp := idempotency.Fingerprint{Payload: idempotency.Digest(m.fingerprint(c, body))}
	if who == "" {
		fp.Credentials = credentials(c.Request)
	}
	out, err := m.claimsOn(l).Begin(c.Request.Context(), key, fp)
	switch {
	case err != nil:
		m.refuseErr(c, err)
	case out.Unprotected != nil:
		m.logUnprotected(c, out.Unprotected)
	case out.Replay != nil:
		m.replay(c, out.Replay)
	default:
		m.run(c, out.Claim)
	}
}

// claims are the Claims on a Locker.
type claims struct {
	*idempotency.Claims
	on *core.Locker
}

// claimsOn returns the Claims on l, which change when core.SetDefault is called again.
func (m *middleware) claimsOn(l *core.Locker) *idempotency.Claims {
	if made := m.claims.Load(); made != nil && made.on == l {
		return made.Claims
	}
	opts := append(slices.Clone(m.records), idempotency.WithTransport("http"), idempotency.WithRetention(m.retention), idempotency.WithWait(m.wait))
	if m.failOpen {
		opts = append(opts, idempotency.WithFailOpen())
	}
	made := &claims{idempotency.New(l, opts...), l}
	m.claims.Store(made)
	return made.Claims
}

// run runs the handler under its claim, and records its answer before it is sent.
func (m *middleware) run(c *gin.Context, claim *idempotency.Claim) {
	outer, request, before := c.Writer, c.Request, len(c.Errors)
	w := newRecorder(outer, m.maxBody)
	w.early = func() {
		if m.keeps(c, w.final()) {
			m.complete(c, claim, idempotency.Tombstone())
		}
	}
	c.Set(heldKey{}, claim)
	c.Writer, c.Request = w, request.WithContext(claim.Context())
	finished := false
	restore := func() { c.Writer, c.Request = outer, leave(c.Request, request) }
	defer m.abandon(c, claim) // leaves alone what was completed
	defer func() {
		if !finished { // it panics: nothing of what is held is sent
			restore()
		}
	}()
	c.Next()
	finished = true
	restore()
	if w.passing {
		return
	}
	if w.bypassed() { // what was answered is not known
		if m.keeps(c, outer.Status()) {
			m.complete(c, claim, idempotency.Tombstone())
		}
		if w.size > 0 {
			_ = w.send(true)
		}
		return
	}
	// An error and no body: the answer is left to an error writer outside, and is not known here.
	unanswered := w.size <= 0 && len(c.Errors) > before
	if m.keeps(c, w.final()) && !unanswered {
		w.WriteHeaderNow() // what is sent is what is recorded
		m.complete(c, claim, w.record(m.headers))
	} else {
		m.abandon(c, claim) // first: a retry may follow at once
	}
	_ = w.send(false) // fails when the client is gone
}

// leave returns the request of the handler as the middlewares outside know it: with their context.
func leave(inner, outer *http.Request) *http.Request {
	outer.MultipartForm = inner.MultipartForm // so that the server removes its files
	return inner.WithContext(outer.Context())
}

// keeps says whether an answer with this status is recorded.
func (m *middleware) keeps(c *gin.Context, status int) bool {
	_, refused := c.Get(refusedKey{})
	switch {
	case refused || status < 100 || status > 999:
		return false
	case status == http.StatusUnauthorized || status == http.StatusProxyAuthRequired:
		return false // whatever RecordIf says: whoever comes with the right credentials must get through
	}
	return m.recordIf(status)
}

// complete records the answer; if that fails the answer is sent all the same.
func (m *middleware) complete(c *gin.Context, claim *idempotency.Claim, r *idempotency.Record) {
	err := claim.Complete(c.Request.Context(), r)
	switch {
	case err == nil:
	case errors.Is(err, core.ErrLost):
		m.log(c, slog.LevelError, "ginlock: the claim was lost while the handler ran; its answer is not recorded, and another may have run", err)
	default:
		m.log(c, slog.LevelError, "ginlock: the answer could not be recorded", err)
		_ = claim.Complete(c.Request.Context(), idempotency.Tombstone()) // of a record that is too large; else the claim is over
	}
}

func (m *middleware) abandon(c *gin.Context, claim *idempotency.Claim) {
	if err := claim.Abandon(c.Request.Context()); err != nil {
		m.log(c, slog.LevelWarn, "ginlock: a claim could not be given up; its key is free when its lease ends", err)
	}
}
