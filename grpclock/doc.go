// Package grpclock makes a unary gRPC method run once per idempotency key, or one call at a time per key.
//
//	locker, err := core.New(redisbackend.New(redisClient))
//	core.SetDefault(locker)
//
//	grpc.NewServer(grpc.UnaryInterceptor(grpclock.ByMetadata("idempotency-key")))                          // a retried call runs once
//	grpc.NewServer(grpc.UnaryInterceptor(grpclock.ByKey("order:{req.order_id}", grpclock.LockOnly())))      // one at a time per order
//	grpc.NewServer(grpc.UnaryInterceptor(grpclock.ByProto()))                                               // what each method's option says
//
// Without [LockOnly] the first call with a key runs, and its answer is recorded; a retry gets that answer, a fresh
// message of the method's own type, with the trailer idempotency-replayed: true. ginlock is the same for Gin.
//
// # Order
//
// What works is: recovery, telemetry, authentication and rate limit, this, what makes gRPC statuses of errors, the
// handler. An interceptor that runs before authentication replays to whoever has the key, revoked credentials
// included; one that turns errors into statuses outside of this one leaves nothing to record. go-grpc-middleware's
// selector leaves methods out. Outside of this one nothing should call grpc.SetHeader before a call is answered:
// clients retry only what was answered by nothing but trailers, as the refusals of this package are.
//
// # What is recorded
//
// OK, InvalidArgument, NotFound, AlreadyExists, FailedPrecondition, OutOfRange and PermissionDenied ([RecordIf]): the
// message, or the status with its details, up to 1 MiB ([MaxBody]), and the headers and trailers that were set inside
// of the interceptor but for credentials and what belongs to the transport, for 24 h ([Retain]). After another code
// and after a panic the key is free, and a retry runs again. An answer is recorded before it is sent, also when the
// client is gone. One that is too large, or no protobuf message, is sent, and a retry is told that it was not kept
// (FailedPrecondition with IDEMPOTENCY_RESPONSE_NOT_KEPT).
//
// # Who calls
//
// A key belongs to a principal: [Principal], or the name in the client's verified TLS certificate. Unless Principal
// names the caller, the metadata authorization, cookie and x-api-key are part of what a retry must repeat: another
// caller, or the same one with a new token, gets FailedPrecondition with IDEMPOTENCY_CREDENTIALS_CHANGED. Callers with
// neither a principal nor a certificate share one space of keys.
//
// # Locks
//
// With LockOnly nothing is recorded. ByKey and [UnaryServerInterceptor] lock exactly their key, which excludes everybody
// who locks it: other services, ginlock, Acquire of core. ByField locks "<service>:<path>:<value>" and ByMetadata
// "metadata:<name>:<value>". All callers exclude each other, unless Principal is set: then each principal has locks of its
// own, and two of them may be at work at once. The handler's context carries the lock, and is cancelled when it is lost;
// the call is Aborted then. Streams are locked by [StreamByKey] and [StreamServerInterceptor].
//
// # Refusals
//
// Each has a google.rpc.ErrorInfo with the domain "onelane" and a stable reason, see [ReasonKeyMissing] and the others, and
// where the same call may succeed later a google.rpc.RetryInfo and the trailer grpc-retry-pushback-ms. A retry policy
// in the client's service config retries Unavailable; with [RetryInFlight] that includes a retry that came too soon.
//
// # Guarantees
//
//   - Of calls with one key, principal and method, one runs at a time, and none after one was recorded, for as long as
//     the record is kept and the guarantees of core hold.
//   - A key that comes again with another request is FailedPrecondition, also while the first runs. All fields count,
//     those too that this process does not know; two versions of a schema see the same request alike.
//   - Two principals with one key never see each other's answers. A record of another method, or a forged one, is never
//     an answer: FailedPrecondition, and nothing runs.
//   - A refusal is nothing but trailers.
//   - When Redis is down before the handler runs, it does not run (Unavailable), unless [FailOpen] is set. When it goes
//     down after that, the answer goes out, and the key stays taken until its lease ends.
//   - A template or path that names no field of the request is Internal, and an error of [Check]: never a call that runs
//     unprotected.
//
// # Does not guarantee
//
//   - That an effect happens once when its answer was not recorded: the handler panicked, answered with another code or
//     died. Make effect and proof one database transaction where that must not happen (see gormlock).
//   - Anything for calls without a key, unless [Require] is set, and for methods without side effects.
//   - That a map in a field which this process does not know makes the same request when the client sends it in another
//     order: such a retry is FailedPrecondition.
//   - That a stream's handler that waits for a message is woken when the lock is lost: its context is cancelled, and the
//     next message is not delivered.
//   - That records are secret in Redis, unless [Records] says so.
package grpclock
