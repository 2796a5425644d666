package grpclock

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"strings"

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
func canonical(m protoreflect.Message) []byte {
	w := writer{b: make([]byte, proto.Size(m.Interface()))}
	w.at = len(w.b)
	w.message(m)
	return w.b[w.at:]
}

// writer writes from the end to the beginning. The length of a nested message stands before the
// message, and is known only when the message is written.
type writer struct {
	b       []byte
	at      int // b[at:] is written
	scratch []byte
}

func (w *writer) prepend(p []byte) {
	if len(p) > w.at {
		grown := make([]byte, 2*len(w.b)+len(p))
		at := len(grown) - w.size()
		copy(grown[at:], w.b[w.at:])
		w.b, w.at = grown, at
	}
	w.at -= len(p)
	copy(w.b[w.at:], p)
}

// size returns how many bytes are written.
func (w *writer) size() int { return len(w.b) - w.at }

func (w *writer) tag(number protoreflect.FieldNumber, t protowire.Type) {
	w.scratch = protowire.AppendTag(w.scratch[:0], number, t)
	w.prepend(w.scratch)
}

func (w *writer) scalar(k protoreflect.Kind, v protoreflect.Value) {
	w.scratch = appendScalar(w.scratch[:0], k, v)
	w.prepend(w.scratch)
}

// nested writes bytes with their tag and length.
func (w *writer) nested(number protoreflect.FieldNumber, write func()) {
	before := w.size()
	write()
	w.scratch = protowire.AppendVarint(w.scratch[:0], uint64(w.size()-before))
	w.prepend(w.scratch)
	w.tag(number, protowire.BytesType)
}

// known is a field that this process knows.
type known struct {
	field protoreflect.FieldDescriptor
	value protoreflect.Value
}

func (w *writer) message(m protoreflect.Message) {
	var fields []known
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		fields = append(fields, known{f, v})
		return true
	})
	slices.SortFunc(
		fields, func(a, b known) int { return cmp.Compare(a.field.Number(), b.field.Number()) },
	)
	raw := []byte(m.GetUnknown())
	starts := sortedStarts(raw)
	for len(fields)+len(starts) > 0 {
		f, s := len(fields)-1, len(starts)-1
		if f < 0 || s >= 0 && starts[s].number() >= fields[f].field.Number() {
			w.prepend(starts[s].of(raw))
			starts = starts[:s]
		} else {
			w.field(fields[f].field, fields[f].value)
			fields = fields[:f]
		}
	}
}

// start is the number of an unknown field and where it begins. A request may be nothing but such
// fields, of two bytes each, so a start must be small.
type start uint64

func newStart(
	number protoreflect.FieldNumber, at int,
) start {
	return start(number)<<32 | start(at)
}

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
			if n < 0 { // such a field is never received, but it must count
				number, n = math.MaxInt32, len(raw)-at
			}
			if !yield(newStart(number, at)) {
				return
			}
			at += n
		}
	}
}

func (w *writer) field(f protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch {
	case f.IsMap():
		// A number becomes text once, and not in each comparison.
		type entry struct {
			text string
			key  protoreflect.MapKey
		}
		entries := make([]entry, 0, v.Map().Len())
		v.Map().Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
			entries = append(entries, entry{k.String(), k})
			return true
		})
		slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(b.text, a.text) })
		for _, e := range entries {
			w.nested(f.Number(), func() {
				w.singular(f.MapValue(), v.Map().Get(e.key))
				w.singular(f.MapKey(), e.key.Value())
			})
		}
	case f.IsList() && f.IsPacked():
		w.nested(f.Number(), func() {
			for i := v.List().Len() - 1; i >= 0; i-- {
				w.scalar(f.Kind(), v.List().Get(i))
			}
		})
	case f.IsList():
		for i := v.List().Len() - 1; i >= 0; i-- {
			w.singular(f, v.List().Get(i))
		}
	default:
		w.singular(f, v)
	}
}

// singular writes one value with its tag.
func (w *writer) singular(f protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch f.Kind() {
	case protoreflect.MessageKind:
		w.nested(f.Number(), func() { w.message(v.Message()) })
		return
	case protoreflect.GroupKind:
		w.tag(f.Number(), protowire.EndGroupType)
		w.message(v.Message())
	default:
		w.scalar(f.Kind(), v)
	}
	w.tag(f.Number(), wireType(f.Kind()))
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
		return protowire.AppendVarint(b, protowire.EncodeBool(v.Bool()))
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
