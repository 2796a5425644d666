package grpclock

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/onelane/onelane/grpclock/lockpb"
)

// keyMetadata is where the key is when nothing says otherwise.
const keyMetadata = "idempotency-key"

// ByProto returns an interceptor that does for each method what its option in the .proto file says:
//
//	import "onelane/v1/lock.proto"; // in grpclock/lockpb
//
//	rpc Pay(PayRequest) returns (Payment) {
//	  option (onelane.v1.lock) = { key: "order:{order_id}" mode: IDEMPOTENT retain: { seconds: 3600 } };
//	}
//
// Methods without the option, and those with idempotency_level = NO_SIDE_EFFECTS whose mode is not LOCK_ONLY, run as
// they are. An option is read once. opts hold where it says nothing. A lock is on exactly the key of its option: for
// one for each principal write {principal} there.
//
// It panics at wiring when opts contradict each other, or name LockOnly, which is the option's to say. A method whose
// option is wrong is refused with Internal, and logged; [Check] finds it when the server is built.
func ByProto(opts ...Option) grpc.UnaryServerInterceptor {
	i := &interceptor{config: newConfig(opts)}
	if i.lockOnly || i.uuid4 {
		panic("grpclock: ByProto: LockOnly and UUID4 are not for all methods: say mode: LOCK_ONLY in the option of a method")
	}
	return i.unary
}

// readOption sets the method up as its option says.
func (m *method) readOption() error {
	if m.desc == nil {
		if m.in == nil {
			m.passes = true // no protobuf, no options
			return nil
		}
		return errors.New("ByProto finds no descriptor of its service, and so no options: link the generated code in, or leave the method out with go-grpc-middleware's selector")
	}
	lock, err := lockOption(m.desc)
	switch {
	case err != nil:
		return err
	case lock == nil:
		m.passes = true
		return nil
	}
	m.lockOnly = lock.Mode == lockpb.Lock_LOCK_ONLY
	if m.lockOnly && lock.Retain != nil {
		return errors.New("its lock option has mode: LOCK_ONLY, which records nothing: remove retain")
	}
	if m.retention, err = duration("retain", lock.Retain, m.retention, minRetention); err != nil {
		return err
	}
	if m.wait, err = duration("wait", lock.Wait, m.wait, 0); err != nil {
		return err
	}
	m.require = m.require || lock.Require
	if lock.Key == "" {
		if m.lockOnly {
			return errors.New(`its lock option has mode: LOCK_ONLY and no key: name what is locked, as in key: "order:{order_id}"`)
		}
		m.source = metadataSource(keyMetadata)
		return nil
	}
	if m.source, err = templateSource(lock.Key, m.plainField); err != nil {
		return err
	}
	// Principal is for all methods, and must not make locks of what excludes everybody.
	m.source.principal = m.source.principal || m.lockOnly
	return nil
}

// plainField reads a field of a template in the .proto file, where {order_id} is a field of the request.
func (m *method) plainField(field string) (place, error) {
	first, _, dotted := strings.Cut(field, ".")
	special := first == "principal" && !dotted || dotted && (first == "metadata" || first == "req")
	if !special {
		if !validPath(field) {
			return place{}, errors.New("it must be {path.of.field}, {metadata.name} or {principal}")
		}
		return place{"req", field}, nil
	}
	if first != "req" && m.desc.Input().Fields().ByName(protoreflect.Name(first)) != nil {
		return place{}, fmt.Errorf("%s has a field of that name: write {req.%s}, or rename it", m.desc.Input().FullName(), field)
	}
	return qualifiedField(field)
}

func duration(name string, d *durationpb.Duration, otherwise, least time.Duration) (time.Duration, error) {
	if d == nil {
		return otherwise, nil
	}
	if err := d.CheckValid(); err != nil {
		return 0, fmt.Errorf("its lock option has a bad %s: %w", name, err)
	}
	if d.AsDuration() < least {
		return 0, fmt.Errorf("its lock option has %s: %v: it must be at least %v", name, d.AsDuration(), least)
	}
	return d.AsDuration(), nil
}

// lockTypes knows our option and nothing else.
var lockTypes = func() *protoregistry.Types {
	var types protoregistry.Types
	if err := types.RegisterExtension(lockpb.E_Lock); err != nil {
		panic(err)
	}
	return &types
}()

// lockOption reads the option of a method; nil if there is none. A descriptor that was made at run time may hold it as
// an unknown field, or as an extension of other types than ours: as bytes they are all the same.
func lockOption(m protoreflect.MethodDescriptor) (*lockpb.Lock, error) {
	o, ok := m.Options().(*descriptorpb.MethodOptions)
	if !ok || o == nil {
		return nil, nil
	}
	b, err := proto.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("its options cannot be read: %w", err)
	}
	var own descriptorpb.MethodOptions
	if err := (proto.UnmarshalOptions{Resolver: lockTypes}).Unmarshal(b, &own); err != nil {
		return nil, fmt.Errorf("its options cannot be read: %w", err)
	}
	if !proto.HasExtension(&own, lockpb.E_Lock) {
		return nil, nil
	}
	lock, _ := proto.GetExtension(&own, lockpb.E_Lock).(*lockpb.Lock)
	if unknown := lock.ProtoReflect().GetUnknown(); len(unknown) > 0 {
		return nil, errors.New("its lock option has fields that this version does not know: use the lock.proto of the version that is linked in")
	}
	if _, known := lockpb.Lock_Mode_name[int32(lock.Mode)]; !known {
		return nil, fmt.Errorf("its lock option has mode %d, which this version does not know", lock.Mode)
	}
	return lock, nil
}
