package idempotency

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/onelane/onelane/internal/claim"
)

// Fail answers for a handler that failed with err and did nothing else. Answer first what clients
// should learn, such as "sold out", and leave the rest to Fail:
//
//	err := gormlock.Transaction(db.WithContext(r.Context()), "stock:42", sell)
//	switch {
//	case errors.Is(err, errSoldOut):
//		http.Error(w, "sold out", http.StatusGone)
//	case err != nil:
//		idempotency.Fail(w, r, err)
//	default:
//		w.WriteHeader(http.StatusCreated)
//	}
//
// The error decides about the answer and the key:
//
//   - Nothing was done: 409 or 503 with Retry-After. The key is free and a retry runs. This holds if a
//     lock or guard was not acquired, after a deadlock, and if err matches [ErrNothingDone]. It also
//     holds if a transaction of gormlock or stock is certainly rolled back.
//   - The outcome of COMMIT is unknown, a lock was lost, or a context ended: 504, or 409 with
//     [CodeLockLost]. The outcome is unknown to a retry.
//   - Any other error: 500, which is recorded. Every retry gets it.
//
// Fail knows the error and not the handler. A handler that did something before, such as a charge,
// must not use Fail for what follows: see [Step]. If err joins several errors, each of them must say
// that nothing was done.
//
// r is the handler's request, whose context carries the claim. Fail logs the error, and the client
// does not see it. A nil error does nothing.
func Fail(w http.ResponseWriter, r *http.Request, err error) {
	if err == nil {
		return
	}
	code, fate := claim.Failure(err)
	p := refusals[code]
	f := &front{httpConfig: httpConfig{writeProblem: writeProblem}}
	if k, ok := claim.FromContext(r.Context()); ok {
		if rec, ok := k.Answer.(*recorder); ok {
			f = rec.front // its WithProblemWriter
		}
	}
	slog.Default().Log(context.WithoutCancel(r.Context()), claim.FailureLevel(code), "idempotency: the handler failed",
		"code", code, "error", err)
	switch fate {
	case claim.Keep:
		f.writeProblem(w, r, p)
		return
	case claim.Unknown:
		claim.SuggestAll(r.Context(), claim.Unknown)
		if code == CodeOutcomeUnknown {
			p.Status, p.Title = http.StatusGatewayTimeout, "The outcome of the request is unknown"
		}
	}
	f.refuse(w, r, p)
}
