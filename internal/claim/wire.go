package claim

import (
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// wire is what is stored, field by field: see recordpb/record.proto. It is written and read by
// hand, because generated code allocates for each field of each request.
type wire struct {
	version                    uint32
	salt, payload, credentials []byte
	notKept                    bool
	status                     uint32
	header                     map[string][]string
	body                       []byte
	keyID                      string
	content                    []byte
	begunMs                    int64
	instance, requestID        string
}

// The numbers of the fields.
const (
	fieldVersion     protowire.Number = 1
	fieldSalt        protowire.Number = 2
	fieldPayload     protowire.Number = 3
	fieldCredentials protowire.Number = 4
	fieldNotKept     protowire.Number = 5
	fieldStatus      protowire.Number = 6
	fieldHeader      protowire.Number = 7
	fieldBody        protowire.Number = 8
	fieldKeyID       protowire.Number = 10
	fieldContent     protowire.Number = 11
	fieldBegunMs     protowire.Number = 13
	fieldInstance    protowire.Number = 14
	fieldRequestID   protowire.Number = 15

	fieldName   protowire.Number = 1
	fieldValues protowire.Number = 2
)

// fewHeaders is how many headers most records have at most.
const fewHeaders = 16

// frame is how many bytes a field takes at most, beside its own.
const frame = 1 + 10

func (w *wire) marshal() []byte {
	size := 13*frame + 3*markPart + len(w.body) + len(w.content) +
		len(w.keyID) + len(w.instance) + len(w.requestID)
	for name, values := range w.header {
		size += frame + headerSize(name, values)
	}
	b := make([]byte, 0, size)
	b = appendNumber(b, fieldVersion, uint64(w.version))
	b = appendText(b, fieldSalt, w.salt)
	b = appendText(b, fieldPayload, w.payload)
	b = appendText(b, fieldCredentials, w.credentials)
	if w.notKept {
		b = appendNumber(b, fieldNotKept, 1)
	}
	b = appendNumber(b, fieldStatus, uint64(w.status))
	names := make([]string, 0, fewHeaders)
	for name := range w.header {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		b = protowire.AppendTag(b, fieldHeader, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(headerSize(name, w.header[name])))
		b = protowire.AppendString(protowire.AppendTag(b, fieldName, protowire.BytesType), name)
		for _, v := range w.header[name] {
			b = protowire.AppendString(protowire.AppendTag(b, fieldValues, protowire.BytesType), v)
		}
	}
	b = appendText(b, fieldBody, w.body)
	b = appendText(b, fieldKeyID, w.keyID)
	b = appendText(b, fieldContent, w.content)
	b = appendNumber(b, fieldBegunMs, uint64(w.begunMs))
	b = appendText(b, fieldInstance, w.instance)
	return appendText(b, fieldRequestID, w.requestID)
}

func headerSize(name string, values []string) int {
	size := 1 + protowire.SizeBytes(len(name))
	for _, v := range values {
		size += 1 + protowire.SizeBytes(len(v))
	}
	return size
}

func appendNumber(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

func appendText[T string | []byte](b []byte, field protowire.Number, v T) []byte {
	if len(v) == 0 {
		return b
	}
	b = protowire.AppendVarint(protowire.AppendTag(b, field, protowire.BytesType), uint64(len(v)))
	return append(b, v...)
}

// unmarshal reads what is stored, and keeps parts of it. Its error matches ErrRecord.
func unmarshal(b []byte) (*wire, error) {
	w := new(wire)
	err := eachField(b, w.setNumber, w.setText)
	for _, name := range []string{w.keyID, w.instance, w.requestID} {
		if err == nil && !utf8.ValidString(name) {
			err = errors.New("a name is not valid UTF-8")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRecord, err)
	}
	return w, nil
}

func (w *wire) setNumber(field protowire.Number, v uint64) {
	switch field {
	case fieldVersion:
		w.version = uint32(v)
	case fieldNotKept:
		w.notKept = v != 0
	case fieldStatus:
		w.status = uint32(v)
	case fieldBegunMs:
		w.begunMs = int64(v)
	}
}

func (w *wire) setText(field protowire.Number, v []byte) error {
	switch field {
	case fieldSalt:
		w.salt = v
	case fieldPayload:
		w.payload = v
	case fieldCredentials:
		w.credentials = v
	case fieldHeader:
		return w.addHeader(v)
	case fieldBody:
		w.body = v
	case fieldKeyID:
		w.keyID = string(v)
	case fieldContent:
		w.content = v
	case fieldInstance:
		w.instance = string(v)
	case fieldRequestID:
		w.requestID = string(v)
	}
	return nil
}

func (w *wire) addHeader(b []byte) error {
	name, values := "", []string{}
	none := func(protowire.Number, uint64) {}
	err := eachField(b, none, func(field protowire.Number, v []byte) error {
		switch field {
		case fieldName:
			name = string(v)
		case fieldValues:
			values = append(values, string(v))
		}
		return nil
	})
	if w.header == nil {
		w.header = make(map[string][]string)
	}
	w.header[name] = values
	return err
}

// eachField calls number or text with each field of a message. It skips fields of other kinds.
func eachField(
	b []byte, number func(protowire.Number, uint64), text func(protowire.Number, []byte) error,
) error {
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		switch {
		case n < 0:
			return protowire.ParseError(n)
		case !field.IsValid():
			return fmt.Errorf("field number %d is not valid", field)
		}
		b = b[n:]
		var err error
		switch kind {
		case protowire.VarintType:
			var v uint64
			if v, n = protowire.ConsumeVarint(b); n >= 0 {
				number(field, v)
			}
		case protowire.BytesType:
			var v []byte
			if v, n = protowire.ConsumeBytes(b); n >= 0 {
				err = text(field, v)
			}
		default:
			n = protowire.ConsumeFieldValue(field, kind, b)
		}
		switch {
		case n < 0:
			return protowire.ParseError(n)
		case err != nil:
			return err
		}
		b = b[n:]
	}
	return nil
}
