package idempotency

import (
	"bytes"
	"compress/flate"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/onelane/onelane/idempotency/internal/recordpb"
)

// encode is what is stored under the lock of this name: the record itself, or an envelope around it.
func (c *Claims) encode(name string, r *Record, m mark) ([]byte, error) {
	b, err := r.encode(m)
	if err != nil {
		return nil, err
	}
	e := &recordpb.Record{Version: envelopeVersion, Content: b}
	if c.compressAbove >= 0 && len(b) > c.compressAbove {
		if small := deflate(b); len(small) < len(b) {
			e.Content, e.Deflated = small, true
		}
	}
	if len(c.keys) > 0 {
		k := c.keys[0]
		e.KeyId = k.ID
		e.Content = k.seal(e.Content, boundTo("record", e.Deflated, name))
	}
	if e.KeyId == "" && !e.Deflated {
		return b, nil // which versions that know no envelopes can read
	}
	return proto.Marshal(e)
}

// decode reads what is stored under the lock of this name. Its error matches ErrRecord.
func (c *Claims) decode(name string, b []byte) (*Record, mark, error) {
	p, err := unmarshal(b)
	if err == nil && p.Version == envelopeVersion {
		p, err = c.open(name, p)
	} else if err == nil && c.keys != nil && !c.readPlain {
		err = fmt.Errorf("%w: it is not encrypted, and ReadPlain is not set", ErrRecord)
	}
	if err != nil {
		return nil, mark{}, err
	}
	return decode(p)
}

// open takes a record out of its envelope.
func (c *Claims) open(name string, e *recordpb.Record) (*recordpb.Record, error) {
	b := e.Content
	switch {
	case e.KeyId != "":
		k, ok := c.key(e.KeyId)
		if !ok {
			return nil, fmt.Errorf("%w: it is encrypted with key %q, which this process does not have", ErrRecord, e.KeyId)
		}
		var err error
		if b, err = k.open(b, boundTo("record", e.Deflated, name)); err != nil {
			return nil, fmt.Errorf("%w: it was not encrypted with key %q for this place, or was changed: %w", ErrRecord, e.KeyId, err)
		}
	case c.keys != nil && !c.readPlain:
		return nil, fmt.Errorf("%w: it is not encrypted, and ReadPlain is not set", ErrRecord)
	}
	if e.Deflated {
		var err error
		if b, err = inflate(b); err != nil {
			return nil, err
		}
	}
	return unmarshal(b)
}

func (c *Claims) key(id string) (EncryptionKey, bool) {
	for _, k := range c.keys {
		if k.ID == id {
			return k, true
		}
	}
	return EncryptionKey{}, false
}

// boundTo is what a ciphertext is bound to: it says nothing when it is moved to another place.
func boundTo(what string, deflated bool, name string) []byte {
	return fmt.Appendf(nil, "onelane %s %t %s", what, deflated, name)
}

// seal returns nonce and ciphertext.
func (k EncryptionKey) seal(b, bound []byte) []byte {
	size := k.AEAD.NonceSize() // 0 where the AEAD chooses its nonces, as cipher.NewGCMWithRandomNonce does
	to := make([]byte, size, size+len(b)+k.AEAD.Overhead())
	_, _ = rand.Read(to) // never fails
	return k.AEAD.Seal(to, to, b, bound)
}

func (k EncryptionKey) open(b, bound []byte) ([]byte, error) {
	size := k.AEAD.NonceSize()
	if len(b) < size {
		return nil, io.ErrUnexpectedEOF
	}
	return k.AEAD.Open(nil, b[:size], b[size:], bound)
}

const sealedTagPrefix = "idem2." // and the ID of a key, a dot, and the mark as base64 of nonce and ciphertext

// tag is the mark as text, for the owner of the lock of this name.
func (c *Claims) tag(name string, m mark) string {
	if len(c.keys) == 0 {
		return m.tag()
	}
	k := c.keys[0]
	b := k.seal(m.bytes(), boundTo("tag", false, name))
	return sealedTagPrefix + k.ID + "." + base64.RawURLEncoding.EncodeToString(b)
}

// parseTag reads the mark of whoever holds the lock of this name; false where it is none that can be read.
func (c *Claims) parseTag(name, tag string) (m mark, ok bool) {
	rest, ok := strings.CutPrefix(tag, sealedTagPrefix)
	if !ok {
		if c.keys != nil && !c.readPlain {
			return m, false
		}
		return parseTag(tag)
	}
	id, text, _ := strings.Cut(rest, ".")
	k, ok := c.key(id)
	if !ok {
		return m, false
	}
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		b, err = k.open(b, boundTo("tag", false, name))
	}
	if err != nil {
		return m, false
	}
	return markOf(b)
}

var deflaters = sync.Pool{New: func() any {
	w, _ := flate.NewWriter(nil, flate.BestSpeed) // fails for impossible levels only
	return w
}}

func deflate(b []byte) []byte {
	var to bytes.Buffer
	w := deflaters.Get().(*flate.Writer)
	defer deflaters.Put(w)
	w.Reset(&to)
	_, _ = w.Write(b) // a Buffer takes everything
	_ = w.Close()
	return to.Bytes()
}

// inflate reads at most maxRecord bytes: a small value can claim to be a very large one.
func inflate(b []byte) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(b)), maxRecord+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrRecord, err)
	case len(b) > maxRecord:
		return nil, fmt.Errorf("%w: it has more than %d bytes", ErrRecord, maxRecord)
	}
	return b, nil
}
