package grpclock

import (
	"encoding/hex"
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// path is a field of a request, or of a message in it.
type path []protoreflect.FieldDescriptor

// resolvePath finds the field of this path in the messages of a type.
func resolvePath(in protoreflect.MessageDescriptor, text string) (path, error) {
	var p path
	for name := range strings.SplitSeq(text, ".") {
		if in == nil {
			return nil, fmt.Errorf(
				"%q: %s is no message that could have a field %q", text, p[len(p)-1].FullName(), name,
			)
		}
		f := in.Fields().ByName(protoreflect.Name(name))
		switch {
		case f == nil:
			return nil, fmt.Errorf("%q: the message %s has no field %q", text, in.FullName(), name)
		case f.IsList() || f.IsMap():
			return nil, fmt.Errorf("%q: %s is repeated, and would make several keys", text, f.FullName())
		}
		p = append(p, f)
		in = f.Message()
	}
	switch last := p[len(p)-1]; last.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return nil, fmt.Errorf("%q: %s is a message: name one of its fields", text, last.FullName())
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return nil, fmt.Errorf(
			"%q: %s is a floating-point number, which makes no key", text, last.FullName(),
		)
	}
	return p, nil
}

// text returns the field's value in a request, or "" if it is not set. An integer of proto3 that is
// not optional is not set if it is 0.
func (p path) text(m protoreflect.Message) string {
	last := len(p) - 1
	for _, f := range p[:last] {
		if !m.Has(f) {
			return ""
		}
		m = m.Get(f).Message()
	}
	f := p[last]
	zeroCounts := !f.HasPresence() &&
		(f.Kind() == protoreflect.BoolKind || f.Kind() == protoreflect.EnumKind)
	if !m.Has(f) && !zeroCounts {
		return ""
	}
	v := m.Get(f)
	if f.Kind() == protoreflect.BytesKind {
		return hex.EncodeToString(v.Bytes())
	}
	return v.String() // an enum is a number here: its name may change between versions
}
