package claim

import (
	"crypto/cipher"
	"crypto/rand"
	"fmt"
	"io"

	"google.golang.org/protobuf/proto"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/claim/recordpb"
)

// EncryptionKey encrypts records. See idempotency.EncryptionKey.
type EncryptionKey struct {
	ID   string
	AEAD cipher.AEAD
}

// encode returns the value to store under the lock of this name: the record, or an envelope around
// it.
func (c *Claims) encode(name string, r *Record, m *mark, run Run) ([]byte, error) {
	b, err := r.encode(m, run)
	if err != nil {
		return nil, err
	}
	if len(c.Keys) == 0 {
		return b, nil
	}
	k := c.Keys[0]
	sealed := k.seal(b, c.boundTo("record", name))
	return proto.Marshal(&recordpb.Record{Version: envelopeVersion, KeyId: k.ID, Content: sealed})
}

// decode reads the value under the lock of this name. Its error matches ErrRecord.
func (c *Claims) decode(name string, b []byte) (*Record, mark, error) {
	p, err := unmarshal(b)
	switch {
	case err != nil:
	case p.Version == envelopeVersion:
		p, err = c.open(name, p)
	case len(c.Keys) > 0 && !c.ReadPlain:
		err = fmt.Errorf("%w: the record is not encrypted; set ReadPlain to read records of the time before encryption", ErrRecord)
	}
	if err != nil {
		return nil, mark{}, err
	}
	return decode(p)
}

// open decrypts an envelope.
func (c *Claims) open(name string, e *recordpb.Record) (*recordpb.Record, error) {
	k, ok := c.key(e.KeyId)
	if !ok {
		return nil, fmt.Errorf("%w: it is encrypted with key %q, which this process does not have", ErrRecord, e.KeyId)
	}
	b, err := k.open(e.Content, c.boundTo("record", name))
	if err != nil {
		return nil, fmt.Errorf("%w: key %q cannot decrypt it: it was changed, or copied from another key: %w", ErrRecord, e.KeyId, err)
	}
	return unmarshal(b)
}

func (c *Claims) key(id string) (EncryptionKey, bool) {
	for _, k := range c.Keys {
		if k.ID == id {
			return k, true
		}
	}
	return EncryptionKey{}, false
}

// boundTo is the additional data of a ciphertext. A ciphertext that was moved to another key or
// prefix cannot be decrypted.
func (c *Claims) boundTo(what, name string) []byte {
	return []byte(core.Join("onelane", what, c.locker.Prefix(), name))
}

// seal returns nonce and ciphertext.
func (k EncryptionKey) seal(b, bound []byte) []byte {
	size := k.AEAD.NonceSize() // 0 if the AEAD draws its nonces, as cipher.NewGCMWithRandomNonce does
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
