// Package ginlock makes a Gin route run once per idempotency key, or one request at a time per key.
//
//	locker, err := core.New(redisbackend.New(redisClient))
//	core.SetDefault(locker)
//
//	r.Use(ginlock.ByHeader("Idempotency-Key"))                              // a retried POST runs once
//	r.POST("/orders/:id/grab", ginlock.ByParam("id", ginlock.LockOnly()), grab) // one at a time per order
//
// Without [LockOnly] the first request with a key runs, and its answer is recorded; a retry gets that answer, with
// Idempotency-Replayed: true. It follows draft-ietf-httpapi-idempotency-key-header-07.
//
// # Order
//
// What works is: Recovery, error writer, compression, authentication and rate limit, this, the handler. A middleware
// that runs before authentication replays to whoever has the key, revoked credentials included. A middleware that limits
// the time of a handler belongs outside: inside it answers while the handler goes on, and a retry would run beside it.
// One that reads the body before must put it back, use ShouldBindBodyWith, or parse it as a form.
//
// # What is recorded
//
// Every answer below 500 but 401, 407, 408, 425 and 429 ([RecordIf]), with its status, its body up to 1 MiB
// ([MaxBody]) and those headers of a list that the handler changed ([Headers]), for 24 h ([Retain]). After another
// answer, after a panic, and after a handler that left c.Errors and no body to an outer error writer, the key is free
// and a retry runs again. The answer is held back until it is recorded. One that is flushed, hijacked or too large
// goes out at once, and a retry is told that it was not kept (409 idempotency_response_not_kept). So it is with what
// httputil.ReverseProxy passes on of a server that names no length: read it in ModifyResponse, and set ContentLength.
//
// # Who asks
//
// A key belongs to a principal: [Principal], or what gin.BasicAuth left under gin.AuthUserKey. Where there is neither,
// all callers share one space of keys, and the Authorization, Cookie and X-Api-Key headers and a verified client
// certificate are part of what a retry must repeat:
// another caller, or the same one with a new token, gets 422 idempotency_credentials_changed. Cookies that change
// with every request make retries fail; use Principal. So do services that tell callers apart by anything else, the
// Host or a header of their own.
//
// # Locks
//
// With LockOnly nothing is recorded. ByParam locks the resource: the path up to the parameter, /orders/42 for
// /orders/:id/grab, so that all routes and methods below it that are locked so exclude each other, and so does core's
// Acquire of "/orders/42". ByHeader and ByQuery lock "header:<Name>:<value>" and "query:<name>:<value>" on all routes;
// By and ByKey lock the key that they make, as it is. All callers exclude each other, unless Principal is set: then each
// principal has locks of its own, and two of them may be at work at once. The request's context (c.Request.Context(),
// and not c itself) carries the lock, and is cancelled when it is lost. A lock and an idempotency key may be used on one route, in either order.
//
// Names of locks are compared as text: /orders/7 and /orders/07 are two. Where a handler takes both for one order, as
// strconv.Atoi does, and some databases, refuse the other form before, or lock what it makes of them, with [By].
//
// # Forms
//
// [RefuseRepeats] is for clients that send no key: whoever submits the same again within a window is refused.
//
// # Guarantees
//
//   - Of requests with one key, principal, method and route, one runs at a time, and none after one was recorded, for
//     as long as the record is kept and the guarantees of core hold.
//   - A key that comes again to the same route and method with another path, query, body or content type is 422, also
//     while the first runs.
//   - Two principals with one key never see each other's answers.
//   - A value in the body, the query or a cookie that a template takes is refused where another reader could find
//     another one: it comes twice, in another case, in a body that says it is no JSON, or in one that gin's ShouldBind
//     would not read, but the query instead.
//   - Set-Cookie, credentials and connection headers are never recorded; the lock's holder is never named to a client.
//   - When Redis is down before the handler runs, it does not run (503), unless [FailOpen] is set. When it goes down
//     after that, the answer goes out, and the key stays taken until its lease ends.
//
// # Does not guarantee
//
//   - That an effect happens once when its answer was not recorded: the handler panicked, answered 500 or died. Make
//     effect and proof one database transaction where that must not happen (see gormlock).
//   - Anything for requests without a key, unless [Require] is set, and for unmatched routes.
//   - That records are secret in Redis: they are stored as they are sent, unless [Records] has
//     idempotency.WithEncryption. Keys are readable there even then.
//
// # Problems
//
// Refusals are application/problem+json (RFC 9457) with a stable code, see [Problem]; [WithProblemWriter] changes the
// format.
package ginlock
