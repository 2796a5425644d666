package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/claim"
)

// The codes of a [Refusal]. They are stable. Over gRPC they are the reasons of an ErrorInfo, in
// upper case.
const (
	CodeKeyMissing         = "idempotency_key_missing"         // 400. See Require.
	CodeKeyInvalid         = "idempotency_key_invalid"         // 400.
	CodeKeyReused          = "idempotency_key_reused"          // 422. The key belongs to another request.
	CodeCredentialsChanged = "idempotency_credentials_changed" // 422.
	CodeInFlight           = "idempotency_in_flight"           // 409. The first request is running.
	CodeResponseNotKept    = "idempotency_response_not_kept"   // 409. The answer was begun, and not recorded.
	CodeOutcomeUnknown     = "idempotency_outcome_unknown"     // 409. Nobody knows what the first request did.
	CodeDuplicateSubmit    = "duplicate_submit"                // 409. See RefuseRepeats.
	CodeLockBusy           = "lock_busy"                       // 409.
	CodeLockSealed         = "lock_sealed"                     // 409. The application sealed the lock's key.
	CodeLockLost           = "lock_lost"                       // 409. The lock was lost while the handler ran.
	CodeLockUnavailable    = "lock_unavailable"                // 503. The backend is down, or there is no Locker.
	CodePrincipalMissing   = "principal_missing"               // 401. A key is made of {principal}.
	CodeRequestTooLarge    = "request_too_large"               // 413. See MaxRequestBody.
	CodeRequestTimeout     = "request_timeout"                 // 408. The body came too slowly.
	CodeRequestUnreadable  = "request_unreadable"              // 400. The body could not be read.
	CodeMisconfigured      = "misconfigured"                   // 500. A mistake in the program, which is logged.
	CodeNothingDone        = "nothing_done"                    // 503. See Fail.
	CodeFailed             = "failed"                          // 500. See Fail.
)

// Refusal is the answer that this package sends instead of the handler's. Its fields are those of
// RFC 9457. Its JSON is the body that clients get.
type Refusal struct {
	// Type is the URI of the code's documentation.
	Type string `json:"type"`
	// Title says what the code means.
	Title string `json:"title"`
	// Status is the HTTP status.
	Status int `json:"status"`
	// Detail says more about this request. It may be empty.
	Detail string `json:"detail,omitempty"`
	// Code is one of the constants of this package.
	Code string `json:"code"`
	// Retryable means that the same request may succeed later.
	Retryable bool `json:"retryable"`
	// Correction says what to change before the request is sent again. It is empty if nothing needs to
	// change.
	Correction string `json:"correction,omitempty"`
	// RetryAfter is sent as the Retry-After header, in whole seconds, unless it is 0.
	RetryAfter time.Duration `json:"-"`
}

// refusedHeader has the code of a refusal. A handler that passes the refusal on passes it on, too,
// whatever the format of the body is.
const refusedHeader = "Idempotency-Refused"

const problemType = "https://pkg.go.dev/github.com/onelane/onelane/idempotency#"

// soon is how long a client should wait before it tries again. Most requests take less time.
const soon = time.Second

var refusals = func() map[string]Refusal {
	all := make(map[string]Refusal)
	for _, r := range []Refusal{
		{Status: 400, Code: CodeKeyMissing, Title: "The idempotency key is missing"},
		{Status: 400, Code: CodeKeyInvalid, Title: "The idempotency key is invalid"},
		{Status: 422, Code: CodeKeyReused, Title: "The idempotency key was used with another request",
			Correction: "Send a new key with a new request, or repeat the first request unchanged."},
		{Status: 422, Code: CodeCredentialsChanged, Title: "The idempotency key was used with other credentials",
			Correction: "Send the retry with the credentials of the first request, or a new request with a new key."},
		{Status: 409, Code: CodeInFlight, Title: "A request with this idempotency key is still running",
			Retryable: true, RetryAfter: soon},
		{Status: 409, Code: CodeResponseNotKept, Title: "The answer to the first request was not kept",
			Correction: "Look up the result of the first request, or send a new one with a new key."},
		{Status: 409, Code: CodeOutcomeUnknown, Title: "The outcome of the first request with this idempotency key is unknown",
			Correction: "Look up what the first request did, or ask the operator of the service. A new key would run the request again."},
		{Status: 409, Code: CodeDuplicateSubmit, Title: "The same form was submitted a moment ago",
			Correction: "Wait for the result of the first request, or change what is submitted."},
		{Status: 409, Code: CodeLockBusy, Title: "Another request is working on this", Retryable: true, RetryAfter: soon},
		{Status: 409, Code: CodeLockSealed, Title: "This is closed for further requests"},
		{Status: 409, Code: CodeLockLost, Title: "The lock was lost while the request ran",
			Correction: "Check what became of the request before it is sent again."},
		{Status: 503, Code: CodeLockUnavailable, Title: "Locks are not available", Retryable: true, RetryAfter: soon},
		{Status: 401, Code: CodePrincipalMissing, Title: "The caller is not known", Correction: "Send credentials."},
		{Status: 413, Code: CodeRequestTooLarge, Title: "The request's body is too large"},
		{Status: 408, Code: CodeRequestTimeout, Title: "The request's body came too slowly", Retryable: true},
		{Status: 400, Code: CodeRequestUnreadable, Title: "The request's body could not be read", Retryable: true},
		{Status: 500, Code: CodeMisconfigured, Title: "The server is misconfigured"},
		{Status: 503, Code: CodeNothingDone, Title: "The request failed and did nothing", Retryable: true, RetryAfter: soon},
		{Status: 500, Code: CodeFailed, Title: "The request failed"},
	} {
		r.Type = problemType + constantOf(r.Code)
		all[r.Code] = r
	}
	return all
}()

// constantOf returns the name of a code's constant.
func constantOf(code string) string {
	name := "Code"
	for word := range strings.SplitSeq(strings.TrimPrefix(code, "idempotency_"), "_") {
		name += strings.ToUpper(word[:1]) + word[1:]
	}
	return name
}

// differing returns the refusal of a request that differs from the first one in a part.
func (p Refusal) differing(part string) Refusal {
	p.Detail = "The " + part + " of this request differs from that of the first one."
	if part == "host" {
		p.Correction = "Repeat the first request to the same host, or send a new key with a new request. " +
			"If the service has several names, its operator can set AnyHost."
	}
	return p
}

// RefusalOf returns the refusal with this code.
func RefusalOf(code string) Refusal { return refusals[code] }

// refuse sends the refusal. The keys of middlewares outside are free after it, unless their claims
// say otherwise.
func (f *front) refuse(w http.ResponseWriter, r *http.Request, p Refusal) {
	if p.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((p.RetryAfter+time.Second-1)/time.Second), 10))
	}
	// A 401 needs a challenge (RFC 9110, 15.5.2). A middleware outside may have set its own.
	if p.Status == http.StatusUnauthorized && w.Header().Get("WWW-Authenticate") == "" {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	w.Header().Set(refusedHeader, p.Code)
	defer noteRefusal(r.Context(), w)()
	f.writeProblem(w, r, p)
}

// refuseSilent answers for a handler that ran and wrote nothing: nobody knows what it did. The
// cause is why its context ended.
func (f *front) refuseSilent(w *recorder, r *http.Request, cause error) {
	w.restoreHeader() // it may describe another body
	claim.SuggestAll(r.Context(), claim.Unknown)
	code := CodeOutcomeUnknown
	if errors.Is(cause, core.ErrLost) {
		code = CodeLockLost
	}
	f.refuse(w, r, refusals[code])
}

// answerSilent answers if the context of a handler ended and it wrote nothing. Such a handler gave
// up, so an empty 200 would be a lie.
func (f *front) answerSilent(w *recorder, r *http.Request) {
	k := w.claim
	if w.wrote || k.Context().Err() == nil || k.LeftToOthers() {
		return
	}
	cause := context.Cause(k.Context())
	f.Logger().WarnContext(context.WithoutCancel(r.Context()),
		"idempotency: the handler's context ended before it answered, so nobody knows what it did",
		"key", claim.KeyPrefix+k.Key(), "route", f.route(r), "method", f.method(r), "error", cause)
	f.refuseSilent(w, r, cause)
}

func writeProblem(w http.ResponseWriter, _ *http.Request, p Refusal) {
	body, _ := json.Marshal(p) // text, numbers and a bool cannot fail
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // an error means that the client is gone
}
