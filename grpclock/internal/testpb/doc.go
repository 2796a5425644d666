// Package testpb is the generated code of test.proto: a service for the tests of grpclock.
package testpb

//go:generate protoc -I . -I ../../lockpb --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative test.proto
