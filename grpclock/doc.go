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
// package idempotency in upper case, and a google.rpc.RetryInfo if the same call may succeed later.
//
// Three things to know:
//
//   - One key has at most one effect. If the handler panics, answers Canceled or DeadlineExceeded,
//     or its process dies, the outcome is unknown, and a retry is refused with
//     IDEMPOTENCY_OUTCOME_UNKNOWN. [Recover], idempotency.RunAgain and idempotency.NothingDone
//     change that. See [DefaultFate] for the other codes.
//   - The handler runs to its end although its client hung up or ran out of time, and a retry gets
//     the answer. Deadlines of the server's own interceptors count, and idempotency.MaxRun. Use
//     grpc.WaitForHandlers and idempotency.Shutdown when the server stops.
//   - The order that works is: recovery, telemetry, authentication and rate limit, this, what makes
//     statuses of errors, the handler. Before authentication an interceptor replays to whoever has
//     the key. Nothing outside should call grpc.SetHeader before a call is answered: clients retry
//     only refusals that are nothing but trailers.
//
// The services grpc.health and grpc.reflection are never protected. The promises and their limits
// are in docs/. Package ginlock is the same for Gin.
package grpclock
