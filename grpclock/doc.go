// Package grpclock makes a unary gRPC method run once per idempotency key, or one call at a time per key.
//
//	locker, err := core.New(core.Clients(redisClient))
//	core.SetDefault(locker)
//
//	server := grpc.NewServer(grpc.UnaryInterceptor(grpclock.ByMetadata("idempotency-key"))) // a retried call runs once
package grpclock
