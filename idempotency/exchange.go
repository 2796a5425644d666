package idempotency

import (
	"net/http"

	"github.com/onelane/onelane/internal/claim"
)

// exchange is a request that is served under a claim: what all middlewares with claims do alike.
type exchange struct {
	*front
	w     http.ResponseWriter
	r     *http.Request
	next  http.Handler
	claim *claim.Claim
	inner *http.Request // with the claim's context
	rec   recorder      // what the handler writes to
}

// Start implements claim.Transport.
func (x *exchange) Start(k *claim.Claim) {
	x.claim, x.inner = k, x.r.WithContext(k.Context())
	x.rec = newTracker(x.w, x.r, x.front)
	x.rec.claim, k.Answer = k, &x.rec
}

// Refuse implements claim.Transport.
func (x *exchange) Refuse(err error) { x.refuseErr(x.w, x.r, err) }

// Unprotected implements claim.Transport.
func (x *exchange) Unprotected(err error) {
	x.logUnprotected(x.r, err)
	x.next.ServeHTTP(x.w, x.r)
}

// Recover implements claim.Transport.
func (x *exchange) Recover(earlier *claim.UnknownError) claim.Recovery {
	defer x.formBack()
	unread := x.inner.WithContext(x.inner.Context()) // a copy
	said := x.recover(&x.rec, x.inner, runOf(earlier))
	switch {
	case said == Answered:
		return claim.Answered
	case said == RunHandler && !x.rec.passing:
		x.rec.forget()
		rewind(x.inner, unread)
		return claim.RunHandler
	}
	x.rec.forget()
	x.refuse(&x.rec, x.inner, refusals[CodeOutcomeUnknown])
	return claim.StillUnknown
}

// Run implements claim.Transport.
func (x *exchange) Run() {
	defer x.formBack()
	x.next.ServeHTTP(&x.rec, x.inner)
}

// formBack gives the files of a form to the server, which removes them.
func (x *exchange) formBack() { x.r.MultipartForm = x.inner.MultipartForm }

// Facts implements claim.Transport.
func (x *exchange) Facts() claim.Facts {
	x.answerSilent(&x.rec, x.inner)
	return x.facts(&x.rec)
}
