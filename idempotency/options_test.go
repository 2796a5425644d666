package idempotency_test

import (
	"crypto/aes"
	"crypto/cipher"
	"fmt"
	"strings"
	"testing"

	"github.com/onelane/onelane/idempotency"
)

// secret is an AES-256-GCM key of this name.
func secret(id string) idempotency.EncryptionKey {
	block, err := aes.NewCipher([]byte(strings.Repeat(id, 32)[:32]))
	if err != nil {
		panic(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return idempotency.EncryptionKey{ID: id, AEAD: aead}
}

// wide is an AEAD that adds more than a tag has room for.
type wide struct{ cipher.AEAD }

func (wide) Overhead() int { return 100 }

func TestWiringPanics(t *testing.T) {
	t.Parallel()
	for want, wire := range map[string]func(){
		"needs a core.Locker":  func() { idempotency.New(nil) },
		"WithRetention":        func() { idempotency.WithRetention(0) },
		"WithWait":             func() { idempotency.WithWait(-1) },
		"WithCompression(-7)":  func() { idempotency.WithCompression(-7) },
		"1 to 32 letters":      func() { idempotency.WithEncryption(secret("a.b")) },
		"has no AEAD":          func() { idempotency.WithEncryption(idempotency.EncryptionKey{ID: "a"}) },
		"there are two keys":   func() { idempotency.WithEncryption(secret("a"), secret("a")) },
		`"a" adds 112 bytes`:   func() { idempotency.WithEncryption(idempotency.EncryptionKey{ID: "a", AEAD: wide{secret("a").AEAD}}) },
		`"", must be 1 to 32 `: func() { idempotency.WithEncryption(secret("a"), idempotency.EncryptionKey{}) },
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.HasPrefix(got, "idempotency: ") || !strings.Contains(got, want) {
					t.Errorf("panic %q does not say %q", got, want)
				}
			}()
			wire()
		}()
	}
	idempotency.New(memoryLocker(t), nil, idempotency.WithWait(0)) // nil is ignored
}
