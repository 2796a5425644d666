// Package grpclock makes a unary gRPC method run once per idempotency key, or one call at a time
// per key.
//
//	locker, err := core.New(redisbackend.New(redisClient))
//	core.SetDefault(locker)
//
//	grpc.NewServer(grpc.UnaryInterceptor(grpclock.ByMetadata("idempotency-key"))) // once per key
//	grpc.NewServer(grpc.UnaryInterceptor(grpclock.LockByKey("order:{req.order_id}"))) // one at a time
//	grpc.NewServer(grpc.UnaryInterceptor(grpclock.ByProto(idempotency.Retain(time.Hour)))) // as .proto says
//
// The first call with a key runs. A retry gets its recorded answer, with the trailer
// idempotency-replayed: true. A refusal has a google.rpc.ErrorInfo whose reason is a code of
// package idempotency in upper case. If the same call may succeed later, it also has a
// google.rpc.RetryInfo.
//
// Three things to know:
//
//   - One key has at most one effect. The outcome is unknown if the handler panics, answers with a
//     code such as Canceled or Unavailable, or if its process dies. A retry is then refused with
//     IDEMPOTENCY_OUTCOME_UNKNOWN. [Recover], idempotency.RunAgain and idempotency.NothingDone
//     change that. See [DefaultFate] for the other codes.
//   - The handler runs to its end even if its client hung up or ran out of time, and a retry gets
//     the answer. Deadlines of the server's own interceptors count, and so does idempotency.MaxRun.
//     Use grpc.WaitForHandlers and idempotency.Shutdown when the server stops.
//   - Use this order: recovery, telemetry, authentication and rate limit, this interceptor, the
//     interceptor that turns errors into statuses, the handler. An interceptor that begins and
//     commits a database transaction belongs inside, or the lock ends before COMMIT. If this
//     interceptor came before authentication, it would replay answers to anyone who has the key.
//     Nothing outside this interceptor should call grpc.SetHeader before a call is answered:
//     clients retry a refusal only if it has nothing but trailers.
//
// The services grpc.health and grpc.reflection are never protected. The promises and their limits
// are in docs/. Package ginlock is the same for Gin.
package grpclock
