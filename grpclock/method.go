package grpclock

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// method is what an interceptor knows of a method; it is found out once.
type method struct {
	config
	i      *interceptor
	full   string                         // "/package.Service/Method"
	desc   protoreflect.MethodDescriptor  // nil where it is not known
	in     protoreflect.MessageDescriptor // of its requests; nil where they are no protobuf
	source *source
	paths  map[string]path
	passes bool  // its calls are not protected
	err    error // it cannot be protected: a mistake in the program

	claims  atomic.Pointer[claims]
	answers atomic.Pointer[protoreflect.MessageType] // what its handler answered with last
}

// method returns what is known of a method, whose request is one of its own.
func (i *interceptor) method(full string, req any) *method {
	var in protoreflect.MessageDescriptor
	if msg := messageOf(req); msg != nil {
		in = msg.ProtoReflect().Descriptor()
	}
	if v, ok := i.methods.Load(full); ok {
		if m := v.(*method); m.in == in {
			return m
		}
	}
	m := i.compile(full, in)
	i.methods.Store(full, m)
	return m
}

func (i *interceptor) compile(full string, in protoreflect.MessageDescriptor) *method {
	m := &method{i: i, config: i.config, full: full, in: in, desc: findMethod(full, in), source: i.source}
	if m.source == nil {
		if m.err = m.readOption(); m.err != nil || m.passes {
			return m
		}
	}
	if !m.lockOnly && hasNoSideEffects(m.desc) {
		m.passes = true
		return m
	}
	m.paths = make(map[string]path, len(m.source.paths))
	for _, text := range m.source.paths {
		if in == nil {
			m.err = errors.New("its request is no protobuf message, and has no fields")
			return m
		}
		p, err := resolvePath(in, text)
		if err != nil {
			m.err = err
			return m
		}
		m.paths[text] = p
	}
	return m
}

// service is the name of the method's service.
func (m *method) service() string {
	service, _ := splitMethod(m.full)
	return service
}

// field is the value of a field of the request that the source named; "" where it is not set.
func (c *call) field(text string) string {
	return c.paths[text].text(messageOf(c.req).ProtoReflect())
}

// messageOf returns a message of either API; nil for anything else.
func messageOf(v any) proto.Message {
	switch msg := v.(type) {
	case proto.Message:
		return msg
	case protoadapt.MessageV1:
		return protoadapt.MessageV2Of(msg)
	}
	return nil
}

func splitMethod(full string) (service, name string) {
	full = strings.TrimPrefix(full, "/")
	i := strings.LastIndexByte(full, '/')
	if i < 0 {
		return full, ""
	}
	return full[:i], full[i+1:]
}

// findMethod finds the descriptor of a method: among those that are linked in, or beside its request's.
func findMethod(full string, in protoreflect.MessageDescriptor) protoreflect.MethodDescriptor {
	service, name := splitMethod(full)
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

// answerType is the type of the method's answers, which a record says is of this name: the handler's own, if it has
// answered in this process.
func (m *method) answerType(recorded protoreflect.FullName) (protoreflect.MessageType, error) {
	if t := m.answers.Load(); t != nil && (*t).Descriptor().FullName() == recorded {
		return *t, nil
	}
	if m.desc != nil {
		out := m.desc.Output()
		if out.FullName() != recorded {
			return nil, fmt.Errorf("the record has a message %q, and the method answers with %q", recorded, out.FullName())
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
