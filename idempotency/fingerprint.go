package idempotency

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"strings"
)

// Fingerprint tells requests apart that have the same key. Make its parts with [Digest].
type Fingerprint struct {
	// Payload is a digest of all that makes it the same request.
	Payload [sha256.Size]byte
	// Credentials is a digest of who asks. Leave it zero where the caller's name is part of the key.
	Credentials [sha256.Size]byte

	transport string // of the Claims that were asked
}

// Digest is the SHA-256 of the parts and their lengths, so that other parts with the same bytes in a row differ.
func Digest(parts ...[]byte) [sha256.Size]byte {
	h := sha256.New()
	var size [8]byte
	for _, p := range parts {
		binary.BigEndian.PutUint64(size[:], uint64(len(p)))
		h.Write(size[:])
		h.Write(p)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// Credentials is a digest of what a request says of who asks: the values of its headers or metadata Authorization,
// Cookie and X-Api-Key. It is the same on every transport.
func Credentials(authorization, cookie, apiKey []string) [sha256.Size]byte {
	a, c, k := digestOf(authorization), digestOf(cookie), digestOf(apiKey)
	return Digest(a[:], c[:], k[:])
}

func digestOf(values []string) [sha256.Size]byte {
	parts := make([][]byte, len(values))
	for i, v := range values {
		parts[i] = []byte(v)
	}
	return Digest(parts...)
}

// markPart is the length of each part of a mark: 128 bits, since nobody can choose a payload knowing the salt.
const markPart = 16

// mark is a fingerprint as it is stored: keyed with a random salt that stands beside it, so that neither the text of
// the owner nor the record is a plain hash of a payload that could be guessed.
type mark struct {
	salt, payload, credentials [markPart]byte

	transport string // in the clear: no two transports could compare payloads
}

func newMark(fp Fingerprint) mark {
	var salt [markPart]byte
	_, _ = rand.Read(salt[:]) // never fails
	return saltedMark(salt, fp)
}

func saltedMark(salt [markPart]byte, fp Fingerprint) mark {
	return mark{salt, keyed(salt, 'p', fp.Payload), keyed(salt, 'c', fp.Credentials), fp.transport}
}

// keyed is a hash of the salt and a digest, of fixed lengths, cut off: an HMAC would prove no more, and cost more.
func keyed(salt [markPart]byte, what byte, digest [sha256.Size]byte) [markPart]byte {
	var b [markPart + 1 + sha256.Size]byte
	copy(b[:], salt[:])
	b[markPart] = what
	copy(b[markPart+1:], digest[:])
	sum := sha256.Sum256(b[:])
	return [markPart]byte(sum[:])
}

func (m mark) bytes() []byte {
	return slices.Concat(m.salt[:], m.payload[:], m.credentials[:], []byte(m.transport))
}

// markOf is the inverse of bytes.
func markOf(b []byte) (m mark, ok bool) {
	if len(b) < 3*markPart || len(b) > 3*markPart && !validTransport(string(b[3*markPart:])) {
		return m, false
	}
	return mark{[markPart]byte(b), [markPart]byte(b[markPart:]), [markPart]byte(b[2*markPart:]), string(b[3*markPart:])}, true
}

// check returns a *MismatchError unless the mark was made of fp.
func (m mark) check(key string, fp Fingerprint) error {
	same := saltedMark(m.salt, fp)
	switch {
	case subtle.ConstantTimeCompare(m.credentials[:], same.credentials[:]) == 0:
		return &MismatchError{Key: key, Credentials: true}
	case m.transport != fp.transport && m.transport != "" && fp.transport != "":
		return &MismatchError{Key: key, Transport: m.transport}
	case subtle.ConstantTimeCompare(m.payload[:], same.payload[:]) == 0:
		return &MismatchError{Key: key}
	}
	return nil
}

const tagPrefix = "idem1." // and three or four parts, each followed by a dot but the last

// tag is the mark as text, for the owner of the lock: 74 bytes, and the transport.
func (m mark) tag() string {
	b := make([]byte, 0, 80)
	b = append(b, tagPrefix...)
	b = base64.RawURLEncoding.AppendEncode(b, m.salt[:])
	b = append(b, '.')
	b = base64.RawURLEncoding.AppendEncode(b, m.payload[:])
	b = append(b, '.')
	b = base64.RawURLEncoding.AppendEncode(b, m.credentials[:])
	if m.transport != "" {
		b = append(append(b, '.'), m.transport...)
	}
	return string(b)
}

// parseTag reads a tag; false where it is none of ours.
func parseTag(tag string) (m mark, ok bool) {
	rest, ok := strings.CutPrefix(tag, tagPrefix)
	if !ok {
		return m, false
	}
	parts := strings.Split(rest, ".")
	switch {
	case len(parts) == 4 && validTransport(parts[3]):
		m.transport = parts[3]
	case len(parts) != 3:
		return m, false
	}
	for i, to := range []*[markPart]byte{&m.salt, &m.payload, &m.credentials} {
		b, err := base64.RawURLEncoding.DecodeString(parts[i])
		if err != nil || len(b) != markPart {
			return mark{}, false
		}
		*to = [markPart]byte(b)
	}
	return m, true
}
