package grpclock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
)

// Check returns an error for each method that would be refused at its first call. The option of
// such a method in the .proto file is wrong, or an interceptor names a field that its request does
// not have. Check knows only services whose generated code is linked in, and passes over others.
// Call it when all services are registered:
//
//	byField := grpclock.ByField("request_id")
//	server := grpc.NewServer(grpc.UnaryInterceptor(byField))
//	shoppb.RegisterOrdersServer(server, orders)
//	if err := grpclock.Check(server, byField); err != nil {
//		log.Fatal(err)
//	}
//
// The server is a [grpc.Server]. The interceptors are of this package. They may be wrapped in
// go-grpc-middleware's selector.
func Check(
	server interface {
		GetServiceInfo() map[string]grpc.ServiceInfo
	},
	interceptors ...grpc.UnaryServerInterceptor,
) error {
	var errs []error
	services := server.GetServiceInfo()
	for _, service := range slices.Sorted(maps.Keys(services)) {
		for _, info := range services[service].Methods {
			full := "/" + service + "/" + info.Name
			if info.IsClientStream || info.IsServerStream {
				if d := findMethod(full, nil); d != nil {
					if lock, err := lockOption(d); err != nil || lock != nil {
						errs = append(
							errs,
							fmt.Errorf(
								"grpclock: %s is a stream, and its lock option is not read: use StreamLockByKey", full,
							),
						)
					}
				}
				continue
			}
			errs = append(errs, checkMethod(full, interceptors)...)
		}
	}
	return errors.Join(errs...)
}

func checkMethod(full string, interceptors []grpc.UnaryServerInterceptor) []error {
	d := findMethod(full, nil)
	if d == nil {
		return nil // nobody knows the type of its requests
	}
	var req proto.Message = dynamicpb.NewMessage(d.Input())
	if t, err := protoregistry.GlobalTypes.FindMessageByName(d.Input().FullName()); err == nil {
		req = t.New().Interface()
	}
	interceptors = append(slices.Clone(interceptors), ByProto())
	r := &report{}
	ctx := context.WithValue(context.Background(), reportKey{}, r)
	done := func(context.Context, any) (any, error) { return nil, nil }
	for _, i := range interceptors {
		_, _ = i(ctx, req, &grpc.UnaryServerInfo{FullMethod: full}, done)
	}
	return r.errs
}

type reportKey struct{}

// report is what an interceptor of this package fills in instead of serving a call.
type report struct{ errs []error }

func checking(ctx context.Context) *report {
	r, _ := ctx.Value(reportKey{}).(*report)
	return r
}

func (r *report) add(m *method) {
	if m.err == nil {
		return
	}
	err := fmt.Errorf("grpclock: %s cannot be protected: %w", m.full, m.err)
	for _, known := range r.errs {
		if known.Error() == err.Error() {
			return
		}
	}
	r.errs = append(r.errs, err)
}
