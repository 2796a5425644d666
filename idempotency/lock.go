package idempotency

import (
	"context"
	"errors"
	"net/http"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/claim"
	"github.com/onelane/onelane/internal/keytext"
)

// LockByKey returns a middleware that holds the lock on a key while the handler runs. So one
// request at a time runs for each key. Nothing is recorded. If the key is taken, a request gets 409
// lock_busy. With [Wait] it waits.
//
// The template is as in [ByKey]. The lock's key is exactly the text that it makes. So LockByKey
// also excludes others who lock that key through ginlock, grpclock, gormlock, or Acquire of package
// core. Spellings of one thing have different keys: 07 is not 7. If your handler takes both, make
// the key of the parsed value with [LockBy]. A template without a field is one lock for all
// requests. All methods are covered, unless [Methods] names some.
//
// The request's context carries the lock, and ends when the lock is lost or the Locker is closed.
// If the handler then returns without having written anything, the answer is 409 lock_lost.
func LockByKey(template string, opts ...LockOption) func(http.Handler) http.Handler {
	s, err := templateSource(template)
	if err != nil {
		panic("idempotency: LockByKey: " + err.Error())
	}
	return newLocks("LockByKey", s, opts)
}

// LockBy is [LockByKey] with a function that makes the key, as in [By]. The key has up to 512
// bytes. Requests whose key is "" run unprotected, unless [Require] is set.
func LockBy(fn func(r *http.Request) (string, error), opts ...LockOption) func(http.Handler) http.Handler {
	if fn == nil {
		panic("idempotency: LockBy(nil): pass a function that returns the key of a request")
	}
	return newLocks("LockBy", funcSource(fn), opts)
}

type locks struct{ front }

func newLocks(name string, s source, opts []LockOption) func(http.Handler) http.Handler {
	m := &locks{newFront(s, opts)}
	return m.wrap(m.wiring(name, m.covers), m.serve)
}

// covers reports whether requests of this method take the lock.
func (m *locks) covers(method string) bool { return m.methods == nil || m.methods[method] }

func (m *locks) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if !m.covers(r.Method) {
		next.ServeHTTP(w, r)
		return
	}
	key, none, ok := m.key(w, r)
	switch {
	case !ok:
		return
	case none:
		next.ServeHTTP(w, r)
		return
	}
	l := m.lockerInUse(w, r)
	if l == nil {
		return
	}
	k, err := m.acquire(r.Context(), l, key)
	switch {
	case err == nil:
		m.run(w, r, next, k)
	case errors.Is(err, core.ErrInvalidKey):
		m.warn(r, "idempotency: the key of a lock is refused", err)
		p := refusals[CodeKeyInvalid]
		p.Detail = keytext.LockRefused
		m.refuse(w, r, p)
	case m.FailOpen && errors.Is(err, core.ErrUnavailable):
		m.logUnprotected(r, err)
		next.ServeHTTP(w, r)
	default:
		m.refuseErr(w, r, err)
	}
}

// acquire acquires the lock. A wait ends when the client is gone, or has closed its half of the
// connection.
func (m *locks) acquire(ctx context.Context, l *core.Locker, key string) (*core.Lock, error) {
	if m.Wait == 0 {
		longer, answered := claim.Linger(ctx)
		defer answered()
		ctx = longer
	}
	return m.AcquireLock(ctx, l, key)
}

func (m *locks) run(w http.ResponseWriter, r *http.Request, next http.Handler, k *core.Lock) {
	sent := newTracker(w, r, &m.front)
	ctx, end := until(r.Context(), claim.WithLock(k))
	defer end()
	inner := r.WithContext(ctx)
	returned := false
	defer func() {
		r.MultipartForm = inner.MultipartForm
		closed := errors.Is(k.Err(), core.ErrClosed) // the Locker, while the handler ran
		lost := claim.ReleaseLock(r.Context(), k, m.Logger(), m.route(r))
		if (lost || closed) && returned && !sent.wrote {
			m.refuseSilent(&sent, r, core.ErrLost)
		}
	}()
	next.ServeHTTP(&sent, inner)
	returned = true
}

// until returns a context that ends with the lock's, and as the request's does, which the lock's may
// outlive. See [claim.Linger].
func until(request, locked context.Context) (ctx context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(locked)
	stopTimer := func() {}
	if deadline, ok := request.Deadline(); ok {
		ctx, stopTimer = context.WithDeadline(ctx, deadline)
	}
	stop := context.AfterFunc(request, func() {
		if request.Err() == context.Canceled { // the deadline ends ctx by itself
			cancel(context.Cause(request))
		}
	})
	return ctx, func() {
		stop()
		stopTimer()
		cancel(nil)
	}
}
