package grpclock

import (
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// canonical returns a message as protobuf, with all fields in the order of their numbers. So it is
// the same whether this process knows a field or not. proto.Marshal, deterministic or not, puts
// unknown fields at the end, so its result differs between two versions of a schema. During a
// roll-out a retry would then look like another request. An unknown field stays as the client sent
// it. If it is a message with a map, a oneof or extensions, its order may not be that of the
// numbers: see [Fingerprint].
func canonical(m protoreflect.Message) ([]byte, error) {
	b, err := proto.MarshalOptions{Deterministic: true, AllowPartial: true}.Marshal(m.Interface())
	if err == nil {
		new(sorter).sort(b, m.Descriptor(), deepest)
	}
	return b, err
}

// deepest is how many messages inside of each other are sorted. A client may send a large message in
// thousands of others, and each level that is not in order is copied. Further inside, an unknown field
// stays behind the known ones.
const deepest = 50

// sorter sorts fields in place, which changes no length. It keeps its memory for the next message.
type sorter struct {
	starts []uint64 // the number of a field and where it begins: a request may be all fields of two bytes
	sorted []byte
}

func (s *sorter) sort(b []byte, d protoreflect.MessageDescriptor, depth int) {
	count, inOrder, last := 0, true, protowire.Number(0)
	for at := 0; at < len(b); count++ {
		f := first(b[at:])
		if known := d.Fields().ByNumber(f.number); known != nil && depth > 0 {
			s.sort(f.message(known.Kind()), known.Message(), depth-1)
		}
		inOrder, last = inOrder && f.number >= last, f.number
		at += len(f.b)
	}
	if inOrder {
		return
	}
	s.starts, s.sorted = slices.Grow(s.starts[:0], count), slices.Grow(s.sorted[:0], len(b))
	for at := 0; at < len(b); {
		f := first(b[at:])
		s.starts = append(s.starts, uint64(f.number)<<32|uint64(at))
		at += len(f.b)
	}
	slices.Sort(s.starts)
	for _, start := range s.starts {
		s.sorted = append(s.sorted, first(b[uint32(start):]).b...)
	}
	copy(b, s.sorted)
}

// field is a field as it is written.
type field struct {
	number protowire.Number
	kind   protowire.Type
	tag    int // its length
	b      []byte
}

// first returns the first field of b.
func first(b []byte) field {
	number, kind, tag := protowire.ConsumeTag(b)
	if tag > 0 {
		if n := protowire.ConsumeFieldValue(number, kind, b[tag:]); n >= 0 {
			return field{number, kind, tag, b[:tag+n]}
		}
	}
	return field{number: math.MaxInt32, b: b} // such a field is never received, but it must count
}

// message returns the message in a field of a known kind, or nil. A client may send another type.
func (f field) message(known protoreflect.Kind) []byte {
	switch {
	case known == protoreflect.MessageKind && f.kind == protowire.BytesType:
		b, _ := protowire.ConsumeBytes(f.b[f.tag:])
		return b
	case known == protoreflect.GroupKind && f.kind == protowire.StartGroupType:
		return f.b[f.tag : len(f.b)-protowire.SizeTag(f.number)]
	}
	return nil
}
