// Package lockpb is the generated code of onelane/v1/lock.proto: the method option that
// grpclock.ByProto reads.
package lockpb

//go:generate protoc --go_out=. --go_opt=module=github.com/onelane/onelane/grpclock/lockpb onelane/v1/lock.proto
