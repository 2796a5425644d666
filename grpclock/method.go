package grpclock

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/onelane/onelane/internal/claim"
)

// method is what an interceptor knows of a method. The interceptor finds it out once.
type method struct {
	config
	full   string                         // "/package.Service/Method"
	desc   protoreflect.MethodDescriptor  // nil if it is not known
	in     protoreflect.MessageDescriptor // of its requests; nil if they are no protobuf
	source source
	paths  map[string]path
	locks  bool
	passes bool  // its calls are not protected
	err    error // it cannot be protected: a mistake in the program

	claims  claim.Cache
	answers atomic.Pointer[protoreflect.MessageType] // what its handler answered with last
	warned  sync.Once                                // that callers share one space of keys
}

// method returns what is known of a method. The request is a new one.
func (i *interceptor) method(full string, req any) *method {
	var in protoreflect.MessageDescriptor
	if msg := messageOf(req); msg != nil {
		in = msg.ProtoReflect().Descriptor()
	}
	if v, ok := i.methods.Load(full); ok && v.(*method).in == in {
		return v.(*method)
	}
	m := &method{
		config: i.config,
		full:   full,
		in:     in,
		desc:   findMethod(full, in),
		source: i.source,
		locks:  i.locks,
	}
	m.err = m.compile()
	i.methods.Store(full, m)
	return m
}

func (m *method) compile() error {
	if m.passes = serversOwn(m.full); m.passes {
		return nil
	}
	if m.source.Read == nil {
		if err := m.readOption(); err != nil || m.passes {
			return err
		}
	}
	if m.passes = !m.locks && hasNoSideEffects(m.desc); m.passes {
		return nil
	}
	m.paths = make(map[string]path, len(m.source.Reads))
	for _, text := range m.source.Reads {
		if m.in == nil {
			return errors.New("its request is no protobuf message, and has no fields")
		}
		p, err := resolvePath(m.in, text)
		if err != nil {
			return err
		}
		m.paths[text] = p
	}
	return nil
}

// serversOwn reports whether a method is of a service that comes with gRPC and has no side effects.
// Interceptors of a whole server leave these methods alone.
func serversOwn(full string) bool {
	return strings.HasPrefix(full, "/grpc.health.") || strings.HasPrefix(full, "/grpc.reflection.")
}

// field returns the value of a field of the request, or "" if it is not set.
func (c *call) field(text string) string {
	return c.paths[text].text(messageOf(c.req).ProtoReflect())
}

// messageOf returns a message of either API, or nil for anything else.
func messageOf(v any) proto.Message {
	switch msg := v.(type) {
	case proto.Message:
		return msg
	case protoadapt.MessageV1:
		return protoadapt.MessageV2Of(msg)
	}
	return nil
}

// findMethod finds the descriptor of a method beside its request's, or among those that are linked
// in.
func findMethod(full string, in protoreflect.MessageDescriptor) protoreflect.MethodDescriptor {
	service, name, _ := strings.Cut(strings.TrimPrefix(full, "/"), "/")
	if in != nil && in.ParentFile() != nil {
		services := in.ParentFile().Services()
		for i := range services.Len() {
			if s := services.Get(i); string(s.FullName()) == service {
				return s.Methods().ByName(protoreflect.Name(name))
			}
		}
	}
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return nil
	}
	s, ok := d.(protoreflect.ServiceDescriptor)
	if !ok {
		return nil
	}
	return s.Methods().ByName(protoreflect.Name(name))
}

func hasNoSideEffects(m protoreflect.MethodDescriptor) bool {
	if m == nil {
		return false
	}
	o, ok := m.Options().(*descriptorpb.MethodOptions)
	return ok && o.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS
}

// answerType returns the type of the method's answers, which has this name in the record. It is the
// handler's own type if that has answered in this process.
func (m *method) answerType(recorded protoreflect.FullName) (protoreflect.MessageType, error) {
	if t := m.answers.Load(); t != nil && (*t).Descriptor().FullName() == recorded {
		return *t, nil
	}
	if m.desc != nil {
		out := m.desc.Output()
		if out.FullName() != recorded {
			return nil, fmt.Errorf(
				"the record has a message %q, and the method answers with %q", recorded, out.FullName(),
			)
		}
		if t, err := protoregistry.GlobalTypes.FindMessageByName(recorded); err == nil {
			return t, nil
		}
		return dynamicpb.NewMessageType(out), nil
	}
	t, err := protoregistry.GlobalTypes.FindMessageByName(recorded)
	if err != nil {
		return nil, fmt.Errorf("the message %q of the record is not linked into this program", recorded)
	}
	return t, nil
}
