package idempotency_test

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// counted counts the nonces that are drawn.
type counted struct {
	cipher.AEAD
	n *atomic.Int64
}

func (c counted) Seal(to, nonce, text, bound []byte) []byte {
	c.n.Add(1)
	return c.AEAD.Seal(to, nonce, text, bound)
}

// EncryptionKey says how many nonces a request takes.
func TestEncryption_Nonces(t *testing.T) {
	t.Parallel()
	block, err := aes.NewCipher(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	var n atomic.Int64
	const steps = 3
	s := orders(t, testutil.Locker(t), func(w http.ResponseWriter, r *http.Request) {
		for i := range steps {
			if _, err := idempotency.Step(r.Context(), fmt.Sprint("step ", i), func(context.Context) (int, error) { return i, nil }); err != nil {
				t.Error(err)
			}
		}
		fmt.Fprint(w, "made")
	}, idempotency.WithEncryption(idempotency.EncryptionKey{ID: "a", AEAD: counted{aead, &n}}))
	s.order("").want(t, 200, "made", false)
	const documented = 2 + 2*steps
	if n.Load() > documented {
		t.Errorf("a request with %d steps took %d nonces, the documentation says %d", steps, n.Load(), documented)
	}
}
