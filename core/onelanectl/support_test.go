package main

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/claim"
	"github.com/onelane/onelane/testutil"
)

// A client asks what became of its key. The operator finds it by caller and key, answers it and the
// step in which it died, and erases the caller later.
func TestSupport_FindAnswerErase(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	locker := must[*core.Locker](t)(core.New(on(node.Client()), core.WithInstance("shop-1")))
	defer locker.Close()
	do := func(wantCode int, args ...string) (string, string) {
		return ctl(t, wantCode, append(args, "-redis", node.Addr())...)
	}
	c := claim.New(locker, "http", claim.DefaultSettings())
	body := func(text string) claim.Fingerprint {
		return claim.FingerprintOf(claim.Parts{claim.Body: claim.DigestText(text)})
	}
	begin := func(key, text string) (claim.Outcome, error) {
		return c.Begin(t.Context(), claim.Request{Key: key, ID: "request-7", Fingerprint: body(text)})
	}
	died := func(key string) {
		k := must[claim.Outcome](t)(begin(key, "7 EUR")).Claim
		_, _ = k.Step(t.Context(), "charge", func(context.Context) ([]byte, error) { return nil, errors.New("died") }, func(error) bool { return false })
		k.Close()
	}
	const ann = "shop:ann%3Ax"
	died(ann + ":Idempotency-Key:k1")
	died(ann + ":grpc:metadata idempotency-key:k1")
	died(ann + "2:Idempotency-Key:k1")
	running := must[claim.Outcome](t)(begin(ann+":Idempotency-Key:k2", "")).Claim
	defer running.Close()

	out, _ := do(0, "find", "ann:x", "k1", "-service", "shop")
	contains(t, out, "claim:"+ann+":Idempotency-Key:k1", "claim:"+ann+":grpc:metadata idempotency-key:k1", "orphaned", "request-7", "shop-1", "payload", "begun")
	out, _ = do(0, "find", "ann:x", "k1", "-service", "shop", "-source", "idempotency-key")
	contains(t, out, "claim:"+ann+":Idempotency-Key:k1")
	_, errs := do(1, "find", "ann:x", "k1")
	contains(t, errs, "has no key")
	do(1, "find", "ann:x", "k1", "-service", "shop", "-source", "X-Key")

	key := "claim:" + ann + ":Idempotency-Key:k1"
	out, _ = do(0, "answer", key, "-status", "201", "-type", "text/plain", "-body", "order 7")
	contains(t, out, "answered "+key)
	replay := must[claim.Outcome](t)(begin(ann+":Idempotency-Key:k1", "7 EUR")).Replay
	if replay == nil || replay.Status != 201 || string(replay.Body) != "order 7" || replay.Header["Content-Type"][0] != "text/plain" || replay.Run.RequestID != "request-7" {
		t.Errorf("the retry gets %+v", replay)
	}
	if _, err := begin(ann+":Idempotency-Key:k1", "8 EUR"); !errors.Is(err, claim.ErrMismatch) {
		t.Errorf("another payload: %v", err)
	}
	do(1, "answer", key, "-status", "500")
	do(1, "answer", running.Key())
	do(2, "answer", ann+":grpc:metadata idempotency-key:k1", "-status", "201")
	do(0, "answer", ann+":grpc:metadata idempotency-key:k1") // without claim:
	if out := must[claim.Outcome](t)(begin(ann+":grpc:metadata idempotency-key:k1", "7 EUR")); out.Replay == nil || !out.Replay.NotKept {
		t.Errorf("the retry over gRPC gets %+v", out)
	}

	steps, _ := do(0, "ls", "claimstep:"+ann+":Idempotency-Key:k1")
	contains(t, steps, "orphaned", "charge")
	step := "claimstep:" + ann + strings.Fields(strings.SplitN(steps, "claimstep:"+ann, 2)[1])[0]
	do(2, "answer", step)
	do(0, "answer", step, "-body", `{"receipt":1}`)
	out, _ = do(0, "inspect", step, "-value")
	contains(t, out, "sealed", `{\"receipt\":1}`)

	_, errs = do(2, "erase", "ann:x", "-service", "shop", "-yes")
	contains(t, errs, "1 keys are held")
	running.Close()
	out, _ = do(0, "erase", "ann:x", "-service", "shop", "-yes")
	contains(t, out, "forgot claim:"+ann+":Idempotency-Key:k2")
	out, _ = do(0, "ls")
	contains(t, out, "claim:"+ann+"2:Idempotency-Key:k1", "claimstep:"+ann+"2:")
	for _, gone := range []string{key, step} {
		do(1, "inspect", gone)
	}
	do(1, "erase", "ann:x", "-service", "shop", "-yes")
}

// Without its key, an encrypted mark shows neither whether it may run again nor the payload. It is
// not answered.
func TestSupport_Encrypted(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	locker := must[*core.Locker](t)(core.New(on(node.Client()), core.WithTTL(time.Minute)))
	defer locker.Close()
	s := claim.DefaultSettings()
	block := must[cipher.Block](t)(aes.NewCipher(make([]byte, 32)))
	s.RunAgain, s.Keys = true, []claim.EncryptionKey{{ID: "2026", AEAD: must[cipher.AEAD](t)(cipher.NewGCM(block))}}
	k := must[claim.Outcome](t)(claim.New(locker, "http", s).Begin(t.Context(), claim.Request{Key: ":ann:Idempotency-Key:k"})).Claim
	k.Close()
	out, _ := ctl(t, 0, "find", "ann", "k", "-redis", node.Addr())
	contains(t, out, "orphaned", "2026", "unless the route has RunAgain, which is encrypted")
	_, errs := ctl(t, 2, "answer", ":ann:Idempotency-Key:k", "-status", "200", "-redis", node.Addr())
	contains(t, errs, "encryption keys")
}

func TestSupport_Usage(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"which key?":                 {"find", "ann"},
		"unexpected argument":        {"answer", "k", "l"},
		"-service is for":            {"ls", "-service", "shop"},
		"-source is for":             {"erase", "ann", "-source", "x"},
		"-status, -type and -body":   {"inspect", "k", "-body", ""},
		"all anonymous callers":      {"erase", ""},
		"-yes is for forget, erase ": {"answer", "k", "-yes"},
	} {
		_, errs := ctl(t, 2, args...)
		contains(t, errs, want)
	}
}
