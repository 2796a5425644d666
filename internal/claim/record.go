package claim

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/onelane/onelane/internal/claim/recordpb"
)

const (
	plainVersion    = 1
	envelopeVersion = 2
	maxEnvelope     = 16 << 20            // what core seals
	maxRecord       = maxEnvelope - 1<<10 // the envelope needs room
)

// Record is the answer of a completed claim. The protocol that answers decides what it means.
type Record struct {
	// Status is the protocol's status of the answer, not negative.
	Status int
	// Header is what is sent beside the body. The handler removed a name that has no values.
	Header map[string][]string
	Body   []byte
	// NotKept makes it a tombstone: the request was answered, but the answer was not kept. Status,
	// Header and Body are empty.
	NotKept bool
	// Run is the run that answered, in a record that was read.
	Run Run
}

// Tombstone returns the record of an answer that cannot be kept, because it is too large or was
// sent before the handler had returned. A retry gets an error that says so, and nothing runs
// twice.
func Tombstone() *Record { return &Record{NotKept: true} }

// encode returns the record, and the mark of the request that it answers, as protobuf of version 1:
// see recordpb/record.proto.
func (r *Record) encode(m *mark, run Run) ([]byte, error) {
	p := &recordpb.Record{
		Version: plainVersion, Salt: m.salt[:], Payload: m.payload[:], Credentials: m.credentials[:],
		Parts: m.parts[:], NotKept: r.NotKept,
		Instance: text(run.Instance), RequestId: m.requestID,
	}
	if !run.Begun.IsZero() {
		p.BegunMs = run.Begun.UnixMilli()
	}
	if !r.NotKept {
		if r.Status < 0 || r.Status > 1<<30 {
			return nil, fmt.Errorf("idempotency: a record cannot have status %d; an HTTP status is from 200 to 999", r.Status)
		}
		p.Status, p.Body = uint32(r.Status), r.Body
		p.Header = make([]*recordpb.Field, 0, len(r.Header))
		for name, values := range r.Header {
			f := &recordpb.Field{Name: []byte(name), Values: make([][]byte, len(values))}
			for i, v := range values {
				f.Values[i] = []byte(v)
			}
			p.Header = append(p.Header, f)
		}
		slices.SortFunc(p.Header, func(a, b *recordpb.Field) int { return bytes.Compare(a.Name, b.Name) })
	}
	if n := proto.Size(p); n > maxRecord {
		return nil, fmt.Errorf("idempotency: a record of %d bytes is too large, at most %d are allowed: complete the claim with Tombstone", n, maxRecord)
	}
	return proto.Marshal(p)
}

// unmarshal reads what is stored. Its error matches ErrRecord.
func unmarshal(b []byte) (*recordpb.Record, error) {
	p := new(recordpb.Record)
	if err := proto.Unmarshal(b, p); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRecord, err)
	}
	return p, nil
}

// decode reads a record of version 1. Its error matches ErrRecord.
func decode(p *recordpb.Record) (*Record, mark, error) {
	var m mark
	if p.Version != plainVersion {
		return nil, m, fmt.Errorf("%w: it has version %d, this process reads versions %d and %d", ErrRecord, p.Version, plainVersion, envelopeVersion)
	}
	if len(p.Salt) != markPart || len(p.Payload) != markPart || len(p.Credentials) != markPart || len(p.Parts) != partsOfMark {
		return nil, m, fmt.Errorf("%w: its fingerprint is incomplete", ErrRecord)
	}
	m = mark{
		salt: [markPart]byte(p.Salt), payload: [markPart]byte(p.Payload), credentials: [markPart]byte(p.Credentials),
		parts: [partsOfMark]byte(p.Parts), requestID: p.RequestId,
	}
	r := &Record{NotKept: p.NotKept, Run: Run{Instance: p.Instance, RequestID: p.RequestId}}
	if p.BegunMs != 0 {
		r.Run.Begun = time.UnixMilli(p.BegunMs)
	}
	if p.NotKept {
		return r, m, nil
	}
	r.Status, r.Body = int(p.Status), p.Body
	if len(p.Header) > 0 {
		r.Header = make(map[string][]string, len(p.Header))
	}
	for _, f := range p.Header {
		values := make([]string, 0, len(f.Values))
		for _, v := range f.Values {
			values = append(values, string(v))
		}
		r.Header[string(f.Name)] = values
	}
	return r, m, nil
}
