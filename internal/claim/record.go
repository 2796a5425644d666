package claim

import (
	"fmt"
	"time"
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
	// Header is what is sent beside the body. A name with no values was removed by the handler.
	Header map[string][]string
	Body   []byte
	// NotKept makes it a tombstone: the request was answered, but the answer was not kept. Status,
	// Header and Body are empty.
	NotKept bool
	// Run is the run that answered, in a record that was read.
	Run Run
}

// Tombstone returns the record of an answer that cannot be kept, because it is too large or was sent
// while it was made. A repeat gets an error that says so, and nothing runs twice.
func Tombstone() *Record { return &Record{NotKept: true} }

// encode is the record, and the mark of the request it answers, as protobuf of version 1: see
// recordpb/record.proto.
func (r *Record) encode(m *mark, run Run) ([]byte, error) {
	w := wire{
		version: plainVersion, salt: m.salt[:], payload: m.payload[:], credentials: m.credentials[:],
		notKept: r.NotKept, instance: text(run.Instance), requestID: m.requestID,
	}
	if !run.Begun.IsZero() {
		w.begunMs = run.Begun.UnixMilli()
	}
	if !r.NotKept {
		if r.Status < 0 || r.Status > 1<<30 {
			return nil, fmt.Errorf("idempotency: a record cannot have status %d", r.Status)
		}
		w.status, w.header, w.body = uint32(r.Status), r.Header, r.Body
	}
	b := w.marshal()
	if n := len(b); n > maxRecord {
		return nil, fmt.Errorf("idempotency: a record of %d bytes is too large, at most %d are allowed: complete the claim with Tombstone", n, maxRecord)
	}
	return b, nil
}

// decode reads a record of version 1. Its error matches ErrRecord.
func decode(w *wire) (*Record, mark, error) {
	var m mark
	if w.version != plainVersion {
		return nil, m, fmt.Errorf("%w: it has version %d, this process reads versions %d and %d", ErrRecord, w.version, plainVersion, envelopeVersion)
	}
	if len(w.salt) != markPart || len(w.payload) != markPart || len(w.credentials) != markPart {
		return nil, m, fmt.Errorf("%w: its fingerprint is incomplete", ErrRecord)
	}
	m = mark{
		salt: [markPart]byte(w.salt), payload: [markPart]byte(w.payload), credentials: [markPart]byte(w.credentials),
		requestID: w.requestID,
	}
	r := &Record{NotKept: w.notKept, Run: Run{Instance: w.instance, RequestID: w.requestID}}
	if w.begunMs != 0 {
		r.Run.Begun = time.UnixMilli(w.begunMs)
	}
	if !w.notKept {
		r.Status, r.Header, r.Body = int(w.status), w.header, w.body
	}
	return r, m, nil
}
