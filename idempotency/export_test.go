package idempotency

import "crypto/sha256"

// For the fuzz tests.
var LockKey = lockKey

// Decode reads a record.
func Decode(b []byte) (*Record, error) {
	r, _, err := decode(b)
	return r, err
}

// Encode writes a record, answering a request with this fingerprint.
func Encode(r *Record, payload [sha256.Size]byte) ([]byte, error) {
	return r.encode(newMark(Fingerprint{Payload: payload}))
}

// TagMatches says whether a tag is one of ours, and matches the fingerprint.
func TagMatches(tag string, fp Fingerprint) (ours, same bool) {
	m, ok := parseTag(tag)
	return ok, ok && m.check("k", fp) == nil
}

// NewTag is the tag of a new claim.
func NewTag(fp Fingerprint) string { return newMark(fp).tag() }
