package grpclock

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/onelane/onelane/grpclock/lockpb"
	"github.com/onelane/onelane/internal/claim"
)

// keyMetadata is the metadata that has the key by default.
const keyMetadata = "idempotency-key"

// ByProto returns an interceptor that does for each method what its option in the .proto file says:
//
//	import "onelane/v1/lock.proto"; // in grpclock/lockpb
//
//	rpc Pay(PayRequest) returns (Payment) {
//	  option (onelane.v1.lock) = { key: "order:{order_id}" mode: IDEMPOTENT retain: { seconds: 3600 } };
//	}
//
// Methods without the option run as they are. So do those with idempotency_level = NO_SIDE_EFFECTS,
// unless their mode is LOCK_ONLY. opts apply to everything that the option leaves out. With
// LOCK_ONLY the lock's key is exactly the text that the template makes, as with [LockByKey].
//
// ByProto panics if one of opts is wrong. A method whose option is wrong is refused with Internal,
// and logged. [Check] finds such a method when the server is built.
func ByProto(
	opts ...Option,
) grpc.UnaryServerInterceptor {
	return newInterceptor("ByProto", source{}, opts)
}

// readOption sets the method up as its option says.
func (m *method) readOption() error {
	if m.desc == nil {
		if m.in == nil {
			m.passes = true // no protobuf, no options
			return nil
		}
		return errors.New(
			"ByProto finds no descriptor of its service, and so no options: " +
				"link the generated code in, or leave the method out with go-grpc-middleware's selector",
		)
	}
	lock, err := lockOption(m.desc)
	switch {
	case err != nil:
		return err
	case lock == nil:
		m.passes = true
		return nil
	}
	m.locks = lock.Mode == lockpb.Lock_LOCK_ONLY
	if m.locks && lock.Retain != nil {
		return errors.New("its lock option has mode: LOCK_ONLY, which records nothing: remove retain")
	}
	if m.Retention, err = duration("retain", lock.Retain, m.Retention, claim.MinRetention, claim.MaxRetention); err != nil {
		return err
	}
	if m.Wait, err = duration("wait", lock.Wait, m.Wait, 0, math.MaxInt64); err != nil {
		return err
	}
	m.Require = m.Require || lock.Require
	switch {
	case lock.Key != "":
		m.source, err = templateSource(lock.Key, m.plainField)
		if err == nil && !m.locks {
			err = m.source.Varies()
		}
	case m.locks:
		err = errors.New(
			"its lock option has mode: LOCK_ONLY and no key: " +
				`name what is locked, as in key: "order:{order_id}"`,
		)
	default:
		m.source, err = metadataSource(keyMetadata)
	}
	return err
}

// plainField reads a field of a template in the .proto file, where {order_id} is a field of the
// request.
func (m *method) plainField(field string) (source, error) {
	first, _, dotted := strings.Cut(field, ".")
	special := first == "principal" && !dotted || dotted && (first == "metadata" || first == "req")
	switch {
	case !special && validPath(field):
		return fieldSource(field), nil
	case !special:
		return source{}, errors.New("it must be {path.of.field}, {metadata.name} or {principal}")
	case first != "req" && m.desc.Input().Fields().ByName(protoreflect.Name(first)) != nil:
		return source{}, fmt.Errorf(
			"%s has a field of that name: write {req.%s}, or rename it", m.desc.Input().FullName(), field,
		)
	}
	return qualifiedField(field)
}

func duration(
	name string, d *durationpb.Duration, otherwise, least, most time.Duration,
) (time.Duration, error) {
	if d == nil {
		return otherwise, nil
	}
	if err := d.CheckValid(); err != nil {
		return 0, fmt.Errorf("its lock option has a bad %s: %w", name, err)
	}
	given := d.AsDuration()
	switch {
	case given < least:
		return 0, fmt.Errorf("its lock option has %s: %v: it must be at least %v", name, given, least)
	case given > most:
		return 0, fmt.Errorf("its lock option has %s: %v: it must be at most %v", name, given, most)
	}
	return given, nil
}

// lockTypes knows only our option.
var lockTypes = func() *protoregistry.Types {
	var types protoregistry.Types
	if err := types.RegisterExtension(lockpb.E_Lock); err != nil {
		panic(err)
	}
	return &types
}()

// lockOption reads the option of a method, or returns nil if there is none. A descriptor that was
// made at run time may hold it as an unknown field, or as an extension of other types than ours.
// Their bytes are the same in each case.
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
		return nil, errors.New(
			"its lock option has fields that this version does not know: " +
				"use the lock.proto of the version that is linked in",
		)
	}
	if _, known := lockpb.Lock_Mode_name[int32(lock.Mode)]; !known {
		return nil, fmt.Errorf("its lock option has mode %d, which this version does not know", lock.Mode)
	}
	return lock, nil
}
