// Package idempotency makes a request that is sent twice have one effect. It has middlewares for
// net/http, and the options and errors that ginlock and grpclock share.
//
//	locker, err := core.New(redisbackend.New(redisClient))
//	core.SetDefault(locker)
//
//	once := idempotency.ByHeader("Idempotency-Key", idempotency.Principal(userOf))
//	mux.Handle("POST /payments", once(pay))
//
// The first request with a key runs, and its answer is recorded. A retry gets that answer, with
// Idempotency-Replayed: true, and the handler does not run. A different request with the same key
// is refused with 422. A retry that comes while the first request runs is refused with 409, or
// waits for the answer with [Wait]. Refusals are application/problem+json with a stable code (see
// [Refusal]).
//
// Three things to know:
//
//   - A key never runs twice by default. If nobody knows what the first run did, because its
//     handler panicked or its process died, a retry is refused with 409
//     idempotency_outcome_unknown. [Recover] finds out what it did. [RunAgain] is for handlers that
//     are safe to repeat. See [DefaultFate] for what each status means.
//   - A key belongs to a service, a principal, a method, a host and a route. Without [Principal]
//     all callers share one space of keys, and a retry must come with the credentials of the first
//     request.
//   - The handler's context does not end when the client hangs up, but after [MaxRun]. Use
//     [DeriveKey] and [Step] for calls to other systems, and call [Shutdown] when the process ends.
//
// Middlewares belong in this order: recovery, compression, authentication and rate limits,
// idempotency, the writer of error responses, the handler. A middleware that limits the time of a
// handler belongs outside. A middleware that begins and commits a database transaction belongs
// inside, or the lock ends before COMMIT. A middleware outside that reads the body must put it
// back.
//
// [Do] is the same for any function, such as a consumer of a queue.
//
// [LockByKey] only holds a lock while the handler runs. [RefuseRepeats] refuses forms that are
// submitted twice. [Transport] is the client's half.
package idempotency
