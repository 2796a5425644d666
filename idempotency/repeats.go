package idempotency

import (
	"encoding/hex"
	"errors"
	"net/http"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/claim"
)

// RefuseRepeats returns a middleware that refuses a form that is submitted twice. It is for clients
// that send no key. A request with the same principal, method, host, path, query and body within
// the window gets 409 duplicate_submit. So does one that comes while the first one is running. The
// window begins with the first answer. The answer is neither recorded nor held back.
//
// The answers that free a key of [ByHeader] free it here, too, so that the form may be sent again
// at once. The caller is the [Principal]. Without one, the credentials and the address of the
// client stand for the caller. So anonymous users behind one address who send the same form count
// as one caller. A cookie that changes with each request makes each one another caller: pass a
// Principal. [Fingerprint] changes which bodies count as the same. The backend gets an unsalted
// hash of the body, from which short bodies can be guessed.
//
// Two RefuseRepeats with different windows on one route both hold. With the same window the inner
// one does nothing.
//
// RefuseRepeats panics if the window is shorter than 10 ms or longer than ten years, or if an
// option is wrong.
func RefuseRepeats(window time.Duration, opts ...HTTPOption) func(http.Handler) http.Handler {
	m := &repeats{front: newFront(source{name: "repeats"}, opts)}
	m.Check(window >= claim.MinRetention, "the window %v must be at least %v", window, claim.MinRetention)
	m.Check(window <= claim.MaxRetention, "the window %v must be at most %v", window, time.Duration(claim.MaxRetention))
	m.Check(m.recover == nil, "omit Recover: an answer is not kept, so there is none to recover")
	m.Retention = window
	m.NeedsSeals()
	w := m.wiring("RefuseRepeats", m.covers)
	w.Seals = true
	return m.wrap(w, m.serve)
}

type repeats struct {
	front
	claims claim.Cache
}

// serve runs a request unless the same was sent before.
func (m *repeats) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if !m.covers(r.Method) {
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
	key, err := m.formKey(r, who)
	switch {
	case err != nil:
		m.refuseBody(w, r, err)
		return
	case claim.Carries(r.Context(), key): // the same window twice, or once more by gin.Engine.HandleContext
		next.ServeHTTP(w, r)
		return
	}
	req := claim.Request{Key: key, ID: requestID(r), Route: m.route(r), OfContent: true}
	req.Deadline, _ = r.Context().Deadline()
	out, err := m.claims.On(l, "http", m.Settings).Begin(r.Context(), req)
	switch {
	case errors.Is(err, claim.ErrInFlight), errors.Is(err, claim.ErrUnknown), errors.Is(err, claim.ErrRecord), out.Replay != nil:
		m.refuse(w, r, refusals[CodeDuplicateSubmit])
	case err != nil:
		m.refuseErr(w, r, err)
	case out.Unprotected != nil:
		m.logUnprotected(r, out.Unprotected)
		next.ServeHTTP(w, r)
	default:
		m.run(w, r, next, out.Claim)
	}
}

// formKey returns the key of a submission. It has everything that makes two submissions the same,
// and the window, because a short window outside must not replace a long one inside.
func (m *repeats) formKey(r *http.Request, who string) (string, error) {
	body, err := m.readBody(r)
	if err != nil {
		return "", err
	}
	anonymous := ""
	if who == "" {
		sum := credentials(r)
		sum = claim.Digest(sum[:], []byte(m.router.address(r)))
		anonymous = hex.EncodeToString(sum[:])
	}
	fp := m.fingerprintOf(r, body)
	sum := claim.Digest(fp.Payload[:], fp.Host[:])
	if fp.AnyHost {
		sum = fp.Payload
	}
	return core.Join(m.Service, who, r.Method, m.name, m.Retention.String(), anonymous, hex.EncodeToString(sum[:])), nil
}

// run runs the handler under its claim, and leaves a tombstone. The answer does not wait for the
// tombstone, because a repeat is also refused while the claim is held.
func (m *repeats) run(w http.ResponseWriter, r *http.Request, next http.Handler, k *claim.Claim) {
	sent, inner := newTracker(w, r), r.WithContext(k.Context())
	k.Answer = sent
	returned := false
	defer func() {
		r.MultipartForm = inner.MultipartForm // the server removes its files
		f := k.Settle(claim.Facts{Failed: true})
		if returned {
			f = m.fate(k, sent)
		}
		k.End(f, claim.Tombstone())
		k.Close()
	}()
	next.ServeHTTP(sent, inner)
	m.answerSilent(sent, inner, k)
	returned = true
}
