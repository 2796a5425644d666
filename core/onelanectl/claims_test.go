package main

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/claim"
	"github.com/onelane/onelane/testutil"
)

func TestClaims_ShownAndForgotten(t *testing.T) {
	t.Parallel()
	began := time.Now()
	node := testutil.Redis(t)
	locker := must[*core.Locker](t)(core.New(on(node.Client()), core.WithInstance("shop-1"), core.WithTTL(time.Minute)))
	defer locker.Close()
	brief := must[*core.Locker](t)(core.New(on(node.Client()), core.WithInstance("shop-1"), core.WithTTL(5*time.Second))) // a Begin with a late answer fails
	defer brief.Close()
	do := func(wantCode int, args ...string) (string, string) {
		return ctl(t, wantCode, append(args, "-redis", node.Addr())...)
	}
	begin := func(l *core.Locker, key string, s claim.Settings) *claim.Claim {
		out := must[claim.Outcome](t)(claim.New(l, "http", s).Begin(t.Context(), claim.Request{Key: key, ID: "request-7"}))
		t.Cleanup(out.Claim.Close)
		return out.Claim
	}
	plain := claim.DefaultSettings()
	block := must[cipher.Block](t)(aes.NewCipher(make([]byte, 32)))
	encrypted := plain
	encrypted.Keys = []claim.EncryptionKey{{ID: "2026", AEAD: must[cipher.AEAD](t)(cipher.NewGCM(block))}}

	sealed := begin(locker, "ann:1", plain)
	must[[]byte](t)(sealed.Step(t.Context(), "charge", func(context.Context) ([]byte, error) { return []byte("visa-4711"), nil }, nil))
	for _, k := range []*claim.Claim{sealed, begin(locker, "ben:1", plain), begin(locker, "ann:secret", encrypted)} {
		if err := k.Complete(&claim.Record{Status: 201, Body: []byte("card visa-4711")}); err != nil {
			t.Fatal(err)
		}
	}
	if err := begin(locker, "ann:stream", plain).Complete(claim.Tombstone()); err != nil {
		t.Fatal(err)
	}
	long := "ann:" + strings.Repeat("x", 600)
	unknown := map[string]claim.Settings{"ann:2": plain, "ann:hidden": encrypted, "ann:/pay/{id}": plain, long: plain}
	for key, s := range unknown {
		begin(brief, key, s).LeaveUnknown()
	}
	for key := range unknown {
		for must[core.State](t)(locker.Inspect(t.Context(), claim.LockKey(locker, "claim:", key))).Status == core.Held {
			time.Sleep(5 * time.Millisecond)
		}
	}

	for key, parts := range map[string][]string{
		"ann:1":         {"sealed", "status 201", "shop-1", "request-7", "begun"},
		"ann:2":         {"orphaned", "unknown", "shop-1", "request-7", "begun", "unseal"},
		"ann:/pay/{id}": {"orphaned", "unknown"},
		long:            {"orphaned", "unknown"},
		"ann:stream":    {"sealed", "not kept", "request-7"},
		"ann:secret":    {"sealed", "encrypted with", "2026"},
		"ann:hidden":    {"orphaned", "encrypted with", "2026", "shop-1", "begun"},
	} {
		out, _ := do(0, "inspect", "claim:"+key)
		contains(t, out, parts...)
		if key == "ann:1" || key == "ann:2" {
			containsDay(t, out, began)
		}
		if strings.Contains(out, "visa-4711") || strings.Contains(out, "\ntag") {
			t.Errorf("inspect shows %q", out)
		}
	}
	out, _ := do(0, "-json", "inspect", "claim:ann:1")
	var s state
	if err := json.Unmarshal([]byte(out), &s); err != nil || s.Claim == nil || s.Claim.RequestID != "request-7" || s.Claim.Answer != "status 201" || s.Claim.Begun.IsZero() {
		t.Errorf("-json inspect says %q: %v", out, err)
	}
	out, _ = do(0, "ls", "claim:")
	contains(t, out, "claim:ann:1", "claim:ann:2", "claim:ben:1")

	out, errs := do(1, "forget", "claim:ann:")
	contains(t, out, "would forget claim:ann:1", "claimstep:ann:1:charge")
	contains(t, errs, "-yes")
	out, _ = do(0, "forget", "claim:ann:", "-yes")
	contains(t, out, "forgot claim:ann:1", "forgot claim:ann:2", "forgot claim:ann:/pay/{id}", "forgot claim:ann:xxx", "forgot claimstep:ann:1:charge")
	if out, _ = do(0, "ls"); strings.Contains(out, "ann") || !strings.Contains(out, "claim:ben:1") {
		t.Errorf("after forget there is %q", out)
	}
	do(1, "forget", "claim:ann:", "-yes")
	_, errs = do(2, "forget", "")
	contains(t, errs, "everything")
	_, errs = do(2, "ls", "-yes")
	contains(t, errs, "-yes is for forget")
}
