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
	m := &repeats{front: newFront(source{Name: "repeats"}, opts)}
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
	req := claim.Request{Key: key, ID: requestID(r), Route: m.route(r), HalfCloses: r.ProtoMajor == 1, OfContent: true}
	req.Deadline, _ = r.Context().Deadline()
	x := &submission{exchange{front: &m.front, w: w, r: r, next: next}}
	m.claims.On(l, "http", m.Settings).Serve(r.Context(), req, x)
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
	return core.Join(m.Service, who, r.Method, m.Name, m.Retention.String(), anonymous, hex.EncodeToString(sum[:])), nil
}

// submission is a request that leaves a tombstone. Its answer does not wait for the tombstone, because
// a repeat is also refused while the claim is held.
type submission struct{ exchange }

// Refuse implements claim.Transport.
func (x *submission) Refuse(err error) {
	for _, repeated := range []error{claim.ErrInFlight, claim.ErrUnknown, claim.ErrRecord} {
		if errors.Is(err, repeated) {
			x.Replay(nil)
			return
		}
	}
	x.exchange.Refuse(err)
}

// Replay implements claim.Transport.
func (x *submission) Replay(*claim.Record) { x.refuse(x.w, x.r, refusals[CodeDuplicateSubmit]) }

// End implements claim.Transport.
func (x *submission) End(f claim.Fate) { x.claim.End(f, claim.Tombstone()) }
