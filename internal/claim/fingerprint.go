package claim

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"strings"
	"time"
)

// Fingerprint tells two requests with the same key apart. Make its parts with [Digest].
type Fingerprint struct {
	// Payload is a digest of everything that makes a retry the same request.
	Payload [sha256.Size]byte
	// Credentials is a digest of the caller's credentials. Leave it zero if the key names the caller.
	Credentials [sha256.Size]byte
}

// Digest returns the SHA-256 of the parts and their lengths. So the same bytes split into other
// parts have another digest.
func Digest(parts ...[]byte) [sha256.Size]byte {
	h := sha256.New()
	var size [8]byte
	for _, p := range parts {
		binary.BigEndian.PutUint64(size[:], uint64(len(p)))
		h.Write(size[:])
		h.Write(p)
	}
	var sum [sha256.Size]byte
	h.Sum(sum[:0])
	return sum
}

// Credentials returns a digest of the values of the headers or metadata Authorization, Cookie and
// X-Api-Key. It is zero if there are none.
func Credentials(authorization, cookie, apiKey []string) [sha256.Size]byte {
	if len(authorization)+len(cookie)+len(apiKey) == 0 {
		return [sha256.Size]byte{}
	}
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

// markPart is the length of each part of a mark. 128 bits are enough: the salt is not known to
// whoever chooses a payload.
const markPart = 16

// mark is a fingerprint as it is stored: keyed with a random salt beside it. A plain hash of an
// amount could be guessed.
type mark struct {
	salt, payload, credentials [markPart]byte

	begun     int64  // when the first run began, in ms since 1970, by its own clock
	requestID string // of the first run, at most maxRequestID bytes
}

// maxRequestID keeps an encrypted tag within the 256 bytes that core takes.
const maxRequestID = 36

func newMark(fp Fingerprint, requestID string) mark {
	var salt [markPart]byte
	_, _ = rand.Read(salt[:]) // never fails
	m := saltedMark(salt, fp)
	m.begun = time.Now().UnixMilli()
	m.requestID = text(requestID[:min(len(requestID), maxRequestID)])
	return m
}

// text returns s without the bytes that protobuf does not accept in text.
func text(s string) string { return strings.ToValidUTF8(s, "") }

func saltedMark(salt [markPart]byte, fp Fingerprint) mark {
	return mark{salt: salt, payload: keyed(salt, 'p', fp.Payload), credentials: keyed(salt, 'c', fp.Credentials)}
}

// keyed is a hash of the salt and a digest, of fixed lengths, truncated. An HMAC would prove no
// more.
func keyed(salt [markPart]byte, what byte, digest [sha256.Size]byte) [markPart]byte {
	var b [markPart + 1 + sha256.Size]byte
	copy(b[:], salt[:])
	b[markPart] = what
	copy(b[markPart+1:], digest[:])
	sum := sha256.Sum256(b[:])
	return [markPart]byte(sum[:])
}

// check returns an error that matches ErrMismatch unless the mark was made of fp.
func (m mark) check(fp Fingerprint) error {
	same := saltedMark(m.salt, fp)
	switch {
	case subtle.ConstantTimeCompare(m.credentials[:], same.credentials[:]) == 0:
		return ErrCredentials
	case subtle.ConstantTimeCompare(m.payload[:], same.payload[:]) == 0:
		return ErrMismatch
	}
	return nil
}

func (m mark) appendTo(b []byte) []byte {
	b = append(append(append(b, m.salt[:]...), m.payload[:]...), m.credentials[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(m.begun))
	return append(b, m.requestID...)
}

// longestMark is how many bytes a mark has at most.
const longestMark = 3*markPart + 8 + maxRequestID

// markOf is the inverse of appendTo.
func markOf(b []byte) (m mark, ok bool) {
	const begun = 3 * markPart
	if len(b) < begun+8 || len(b) > longestMark {
		return m, false
	}
	return mark{
		salt: [markPart]byte(b), payload: [markPart]byte(b[markPart:]), credentials: [markPart]byte(b[2*markPart:]),
		begun: int64(binary.BigEndian.Uint64(b[begun:])), requestID: string(b[begun+8:]),
	}, true
}

const (
	plainTag     = "idem3." // and the mark as base64
	longestTag   = 256
	encryptedTag = "idem4." // and the id of a key, a dot, and nonce and ciphertext as base64
)

// tag returns the mark as text, for the owner of the lock of this name.
func (c *Claims) tag(name string, m mark) string {
	tag := make([]byte, 0, longestTag)
	if len(c.Keys) == 0 {
		b := m.appendTo(make([]byte, 0, longestMark))
		return string(base64.RawURLEncoding.AppendEncode(append(tag, plainTag...), b))
	}
	k := c.Keys[0]
	tag = append(append(append(tag, encryptedTag...), k.ID...), '.')
	return string(base64.RawURLEncoding.AppendEncode(tag, k.seal(m.appendTo(nil), c.boundTo("tag", name))))
}

// parseTag reads the mark of the holder of the lock of this name. ok is false if it cannot be read.
func (c *Claims) parseTag(name, tag string) (m mark, ok bool) {
	if text, plain := strings.CutPrefix(tag, plainTag); plain && (len(c.Keys) == 0 || c.ReadPlain) {
		b, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil {
			return m, false
		}
		return markOf(b)
	}
	text, ok := strings.CutPrefix(tag, encryptedTag)
	if !ok {
		return m, false
	}
	id, text, _ := strings.Cut(text, ".")
	k, ok := c.key(id)
	if !ok {
		return m, false
	}
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		b, err = k.open(b, c.boundTo("tag", name))
	}
	if err != nil {
		return m, false
	}
	return markOf(b)
}
