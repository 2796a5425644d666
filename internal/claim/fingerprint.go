package claim

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"time"
)

// Fingerprint tells two requests with the same key apart. Make its parts with [Digest].
type Fingerprint struct {
	// Payload is a digest of everything that makes a retry the same request, except the host.
	Payload [sha256.Size]byte
	// Host is a digest of the name under which the client reached the service, or zero. With AnyHost
	// a retry may come under another name.
	Host    [sha256.Size]byte
	AnyHost bool
	// Credentials is a digest of the caller's credentials. Leave it zero if the key names the caller.
	Credentials [sha256.Size]byte
	// Parts are digests of the parts of the payload, or zero. They only name the part that differs.
	Parts Parts
}

// Parts are digests of the parts of a payload.
type Parts [nParts][sha256.Size]byte

// The parts of a payload.
const (
	Method = iota
	Path
	Query
	Headers
	Body
	nParts
)

// partNames are for refusals and logs.
var partNames = [nParts]string{"method", "path", "query", "headers", "body"}

// FingerprintOf returns the fingerprint of a request that consists of these parts.
func FingerprintOf(parts Parts) Fingerprint {
	var all [nParts * sha256.Size]byte
	for i := range parts {
		copy(all[i*sha256.Size:], parts[i][:])
	}
	return Fingerprint{Payload: sha256.Sum256(all[:]), Parts: parts}
}

// scope returns a text for what a request is about, without its body, or "" if that is not known.
func (fp *Fingerprint) scope() string {
	if fp.Parts == (Parts{}) {
		return ""
	}
	host := fp.Host
	if fp.AnyHost {
		host = [sha256.Size]byte{}
	}
	sum := Digest(fp.Parts[Method][:], fp.Parts[Path][:], host[:])
	return hex.EncodeToString(sum[:8])
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

// DigestText is Digest for texts. Short ones cost no allocation.
func DigestText(parts ...string) [sha256.Size]byte {
	var short [256]byte
	b := short[:0]
	for _, p := range parts {
		if len(b)+8+len(p) > len(short) {
			all := make([][]byte, len(parts))
			for i, p := range parts {
				all[i] = []byte(p)
			}
			return Digest(all...)
		}
		b = append(binary.BigEndian.AppendUint64(b, uint64(len(p))), p...)
	}
	return sha256.Sum256(b)
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

const (
	// markPart is the length of the parts of a mark that decide. 128 bits are enough: the salt is not
	// known to whoever chooses a payload.
	markPart = 16
	// hostPart is the length of the host. Few hosts share a key.
	hostPart = 8
	// hintPart is the length of a part that only names what differs.
	hintPart = 2
)

// mark is a fingerprint as it is stored: keyed with a random salt beside it. A plain hash of an
// amount could be guessed.
type mark struct {
	salt, payload, credentials [markPart]byte

	// parts are hostPart bytes of the host, and hintPart bytes of each of the Parts.
	parts [partsOfMark]byte

	// begun is when the first run began, in ms since 1970, by its own clock.
	begun int64
	// again means that the run may be repeated.
	again bool
	// requestID is that of the first run, with at most maxRequestID bytes.
	requestID string
}

// maxRequestID keeps an encrypted tag within the 256 bytes that core takes.
const maxRequestID = 36

func newMark(fp Fingerprint, requestID string, again bool) mark {
	var salt [markPart]byte
	_, _ = rand.Read(salt[:]) // never fails
	m := saltedMark(salt, &fp)
	m.begun, m.again = time.Now().UnixMilli(), again
	m.requestID = text(requestID[:min(len(requestID), maxRequestID)])
	return m
}

// text returns s without the bytes that protobuf does not accept in text.
func text(s string) string { return strings.ToValidUTF8(s, "") }

func saltedMark(salt [markPart]byte, fp *Fingerprint) mark {
	m := mark{salt: salt, payload: keyed(salt, 'p', &fp.Payload), credentials: keyed(salt, 'c', &fp.Credentials)}
	host := keyed(salt, 'h', &fp.Host)
	copy(m.parts[:hostPart], host[:])
	for i := range fp.Parts {
		hint := keyed(salt, '0'+byte(i), &fp.Parts[i])
		copy(m.hint(i), hint[:])
	}
	return m
}

// hint returns the bytes that differ if a part does.
func (m *mark) hint(part int) []byte {
	at := hostPart + part*hintPart
	return m.parts[at : at+hintPart]
}

// keyed is a hash of the salt and a digest, of fixed lengths, truncated. An HMAC would prove no
// more.
func keyed(salt [markPart]byte, what byte, digest *[sha256.Size]byte) [markPart]byte {
	var b [markPart + 1 + sha256.Size]byte
	copy(b[:], salt[:])
	b[markPart] = what
	copy(b[markPart+1:], digest[:])
	sum := sha256.Sum256(b[:])
	return [markPart]byte(sum[:])
}

// check returns an error that matches ErrMismatch unless the mark was made of fp.
func (m *mark) check(fp Fingerprint) error {
	same := saltedMark(m.salt, &fp)
	switch {
	case subtle.ConstantTimeCompare(m.credentials[:], same.credentials[:]) == 0:
		return ErrCredentials
	case !fp.AnyHost && [hostPart]byte(m.parts[:]) != [hostPart]byte(same.parts[:]):
		return &MismatchError{"host"}
	case subtle.ConstantTimeCompare(m.payload[:], same.payload[:]) == 1:
		return nil
	}
	for i, name := range partNames {
		if !bytes.Equal(m.hint(i), same.hint(i)) {
			return &MismatchError{name}
		}
	}
	return ErrMismatch
}

func (m *mark) appendTo(b []byte) []byte {
	b = append(append(append(b, m.salt[:]...), m.payload[:]...), m.credentials[:]...)
	b = append(b, m.parts[:]...)
	begun := uint64(m.begun)
	if m.again {
		begun |= againBit
	}
	b = binary.BigEndian.AppendUint64(b, begun)
	return append(b, m.requestID...)
}

const (
	againBit     = 1 << 63 // of the time, which is shorter
	partsOfMark  = hostPart + nParts*hintPart
	shortestMark = 3*markPart + partsOfMark + 8
	longestMark  = shortestMark + maxRequestID
)

// markOf is the inverse of appendTo.
func markOf(b []byte) (m mark, ok bool) {
	if len(b) < shortestMark || len(b) > longestMark {
		return m, false
	}
	begun := binary.BigEndian.Uint64(b[shortestMark-8:])
	return mark{
		salt: [markPart]byte(b), payload: [markPart]byte(b[markPart:]), credentials: [markPart]byte(b[2*markPart:]),
		parts: [partsOfMark]byte(b[3*markPart:]), begun: int64(begun &^ againBit), again: begun&againBit != 0, requestID: string(b[shortestMark:]),
	}, true
}

const (
	plainTag     = "idem5." // and the mark as base64
	longestTag   = 256
	encryptedTag = "idem6." // and the id of a key, a dot, and nonce and ciphertext as base64
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
