// Package orderpb is the generated code of order.proto.
package orderpb

//go:generate protoc -I . -I ../../../grpclock/lockpb --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative order.proto
