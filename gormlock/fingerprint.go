package gormlock

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"

	"github.com/onelane/onelane/internal/claim"
)

// Fingerprint makes [Once] refuse, with [ErrMismatch], a key that was done with other parts. Parts
// are, for example, the amount and the currency of a payment. Only a salted hash of them is stored.
// A run without a fingerprint is not compared, except with a key of [ClaimKey].
func Fingerprint(parts ...[]byte) TransactionOption {
	return transactionOption(func(g *guard) {
		digest := claim.Digest(parts...)
		g.fingerprint = digest[:]
	})
}

const saltSize = 16

// newMark is the fingerprint as it is stored: a salt, and a hash keyed with it. Somebody could
// guess a plain hash of an amount.
func (o *once) newMark() []byte {
	if o.fingerprint == nil {
		return nil
	}
	salt := make([]byte, saltSize, saltSize+sha256.Size)
	_, _ = rand.Read(salt) // never fails
	return o.salted(salt)
}

func (o *once) salted(salt []byte) []byte {
	h := hmac.New(sha256.New, salt)
	h.Write(o.fingerprint)
	return h.Sum(bytes.Clone(salt))
}

func (o *once) matches(mark []byte) bool {
	if o.fingerprint == nil || len(mark) < saltSize {
		return true
	}
	return hmac.Equal(mark, o.salted(mark[:saltSize]))
}
