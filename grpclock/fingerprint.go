package grpclock

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"io"
	"iter"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// canonicalDigest returns a digest of all fields of a message in the order of their numbers. It is the
// same whether this process knows a field or not. proto.Marshal, deterministic or not, puts unknown
// fields at the end, and so differs between two versions of a schema: during a roll-out a retry would
// look like another request. An unknown field stays as the client sent it, also the order of a map in it.
func canonicalDigest(m protoreflect.Message) []byte {
	h := sha256.New()
	w := walk{out: make([]byte, 0, proto.Size(m.Interface()))}
	w.message(m)
	w.write(h)
	return h.Sum(nil)
}

// walk collects the bytes of a message without the lengths of the messages in it, and where those
// belong. A length is known when its message is done. To move the bytes then would be quadratic in the
// depth.
type walk struct {
	out     []byte
	lengths []length
}

type length struct{ at, n int }

// write writes all bytes and lengths.
func (w *walk) write(to io.Writer) {
	from := 0
	var size [binary.MaxVarintLen64]byte
	for _, l := range w.lengths {
		_, _ = to.Write(w.out[from:l.at])
		_, _ = to.Write(protowire.AppendVarint(size[:0], uint64(l.n)))
		from = l.at
	}
	_, _ = to.Write(w.out[from:])
}

// known is a field that this process knows.
type known struct {
	field protoreflect.FieldDescriptor
	value protoreflect.Value
}

// message writes m and returns how many bytes it is, lengths included.
func (w *walk) message(m protoreflect.Message) int {
	var fields []known
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		fields = append(fields, known{f, v})
		return true
	})
	slices.SortFunc(fields, func(a, b known) int { return cmp.Compare(a.field.Number(), b.field.Number()) })
	raw := []byte(m.GetUnknown())
	starts := sortedStarts(raw)
	size := 0
	for len(fields) > 0 || len(starts) > 0 {
		if len(starts) == 0 || len(fields) > 0 && fields[0].field.Number() <= starts[0].number() {
			size += w.field(fields[0].field, fields[0].value)
			fields = fields[1:]
		} else {
			size += w.add(append(w.out, starts[0].of(raw)...))
			starts = starts[1:]
		}
	}
	return size
}

// start is the number of an unknown field and where it begins. A request may be nothing but such fields,
// of two bytes each, so a start must be small.
type start uint64

func newStart(number protoreflect.FieldNumber, at int) start { return start(number)<<32 | start(at) }

func (p start) number() protoreflect.FieldNumber { return protoreflect.FieldNumber(p >> 32) }

// of returns the bytes of the field.
func (p start) of(raw []byte) []byte {
	raw = raw[uint32(p):]
	if _, _, n := protowire.ConsumeField(raw); n >= 0 {
		return raw[:n]
	}
	return raw
}

// sortedStarts returns the starts of all fields in raw, by number, then as they came.
func sortedStarts(raw []byte) []start {
	count := 0
	for range eachField(raw) {
		count++
	}
	starts := make([]start, 0, count)
	for p := range eachField(raw) {
		starts = append(starts, p)
	}
	slices.Sort(starts)
	return starts
}

func eachField(raw []byte) iter.Seq[start] {
	return func(yield func(start) bool) {
		for at := 0; at < len(raw); {
			number, _, n := protowire.ConsumeField(raw[at:])
			if n < 0 { // not received, but it must count
				number, n = math.MaxInt32, len(raw)-at
			}
			if !yield(newStart(number, at)) {
				return
			}
			at += n
		}
	}
}

// add takes longer output and returns by how much.
func (w *walk) add(out []byte) int {
	n := len(out) - len(w.out)
	w.out = out
	return n
}

func (w *walk) field(f protoreflect.FieldDescriptor, v protoreflect.Value) int {
	size := 0
	switch {
	case f.IsMap():
		for _, k := range sortedKeys(v.Map()) {
			size += w.add(protowire.AppendTag(w.out, f.Number(), protowire.BytesType))
			size += w.nested(func() int {
				return w.singular(f.MapKey(), k.Value()) + w.singular(f.MapValue(), v.Map().Get(k))
			})
		}
	case f.IsList() && f.IsPacked():
		size += w.add(protowire.AppendTag(w.out, f.Number(), protowire.BytesType))
		size += w.nested(func() int {
			n := 0
			for i := range v.List().Len() {
				n += w.add(appendScalar(w.out, f.Kind(), v.List().Get(i)))
			}
			return n
		})
	case f.IsList():
		for i := range v.List().Len() {
			size += w.singular(f, v.List().Get(i))
		}
	default:
		size = w.singular(f, v)
	}
	return size
}

// singular writes one value with its tag.
func (w *walk) singular(f protoreflect.FieldDescriptor, v protoreflect.Value) int {
	size := w.add(protowire.AppendTag(w.out, f.Number(), wireType(f.Kind())))
	switch f.Kind() {
	case protoreflect.MessageKind:
		size += w.nested(func() int { return w.message(v.Message()) })
	case protoreflect.GroupKind:
		size += w.message(v.Message())
		size += w.add(protowire.AppendTag(w.out, f.Number(), protowire.EndGroupType))
	default:
		size += w.add(appendScalar(w.out, f.Kind(), v))
	}
	return size
}

// nested writes bytes with their length before them.
func (w *walk) nested(write func() int) int {
	i := len(w.lengths)
	w.lengths = append(w.lengths, length{at: len(w.out)})
	n := write()
	w.lengths[i].n = n
	return protowire.SizeVarint(uint64(n)) + n
}

func sortedKeys(m protoreflect.Map) []protoreflect.MapKey {
	keys := make([]protoreflect.MapKey, 0, m.Len())
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k)
		return true
	})
	slices.SortFunc(keys, func(a, b protoreflect.MapKey) int {
		switch a.Interface().(type) {
		case string:
			return strings.Compare(a.String(), b.String())
		case bool:
			return cmp.Compare(number(a.Bool()), number(b.Bool()))
		case int32, int64:
			return cmp.Compare(a.Int(), b.Int())
		default:
			return cmp.Compare(a.Uint(), b.Uint())
		}
	})
	return keys
}

func number(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func wireType(k protoreflect.Kind) protowire.Type {
	switch k {
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind:
		return protowire.BytesType
	case protoreflect.GroupKind:
		return protowire.StartGroupType
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
		return protowire.Fixed32Type
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
		return protowire.Fixed64Type
	default:
		return protowire.VarintType
	}
}

func appendScalar(b []byte, k protoreflect.Kind, v protoreflect.Value) []byte {
	switch k {
	case protoreflect.BoolKind:
		return protowire.AppendVarint(b, number(v.Bool()))
	case protoreflect.EnumKind:
		return protowire.AppendVarint(b, uint64(v.Enum()))
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		return protowire.AppendVarint(b, uint64(v.Int()))
	case protoreflect.Sint32Kind, protoreflect.Sint64Kind:
		return protowire.AppendVarint(b, protowire.EncodeZigZag(v.Int()))
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind:
		return protowire.AppendVarint(b, v.Uint())
	case protoreflect.Fixed32Kind:
		return protowire.AppendFixed32(b, uint32(v.Uint()))
	case protoreflect.Sfixed32Kind:
		return protowire.AppendFixed32(b, uint32(v.Int()))
	case protoreflect.Fixed64Kind:
		return protowire.AppendFixed64(b, v.Uint())
	case protoreflect.Sfixed64Kind:
		return protowire.AppendFixed64(b, uint64(v.Int()))
	case protoreflect.FloatKind:
		return protowire.AppendFixed32(b, math.Float32bits(float32(v.Float())))
	case protoreflect.DoubleKind:
		return protowire.AppendFixed64(b, math.Float64bits(v.Float()))
	case protoreflect.StringKind:
		return protowire.AppendString(b, v.String())
	default:
		return protowire.AppendBytes(b, v.Bytes())
	}
}
