package idempotency_test

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// A key that comes by another transport is known, while the first runs and after, and is never a replay: nobody could
// say whether the payload is the same, nor what the answer means there.
func TestAnotherTransport(t *testing.T) {
	t.Parallel()
	block, err := aes.NewCipher(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	for name, opts := range map[string][]idempotency.Option{
		"plain":     nil,
		"encrypted": {idempotency.WithEncryption(idempotency.EncryptionKey{ID: strings.Repeat("k", 32), AEAD: gcm})},
		"waiting":   {idempotency.WithWait(10 * time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, ctx := testutil.Locker(t), context.Background()
			by := func(transport string) *idempotency.Claims {
				return idempotency.New(l, append(opts, idempotency.WithTransport(transport))...)
			}
			transportOf := func(err error) string {
				t.Helper()
				var mismatch *idempotency.MismatchError
				if !errors.As(err, &mismatch) || mismatch.Credentials {
					t.Fatalf("%v", err)
				}
				return mismatch.Transport
			}
			out, err := by("http").Begin(ctx, "k", fp("a"))
			if err != nil || out.Claim == nil {
				t.Fatalf("%+v, %v", out, err)
			}
			check := func() {
				t.Helper()
				for _, payload := range []string{"a", "b"} {
					if _, err := by("grpc").Begin(ctx, "k", fp(payload)); transportOf(err) != "http" {
						t.Errorf("payload %q: %v", payload, err)
					}
				}
				if _, err := by("http").Begin(ctx, "k", fp("b")); transportOf(err) != "" {
					t.Error(err)
				}
				stranger := fp("a")
				stranger.Credentials = idempotency.Digest([]byte("x"))
				var mismatch *idempotency.MismatchError
				if _, err := by("grpc").Begin(ctx, "k", stranger); !errors.As(err, &mismatch) || !mismatch.Credentials || mismatch.Transport != "" {
					t.Errorf("a stranger is told: %v", err)
				}
			}
			check()
			if err := out.Claim.Complete(ctx, &idempotency.Record{Status: 200}); err != nil {
				t.Fatal(err)
			}
			check()
			for _, transport := range []string{"http", ""} { // "" is any
				if out, err := by(transport).Begin(ctx, "k", fp("a")); err != nil || out.Replay == nil {
					t.Errorf("%q: %+v, %v", transport, out, err)
				}
			}
		})
	}
}

func TestBadTransport(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"HTTP", "a.b", "ninechars", "é"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("WithTransport(%q) was accepted", name)
				}
			}()
			idempotency.WithTransport(name)
		}()
	}
}
