package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/claim"
	"github.com/onelane/onelane/testutil"
)

func TestRunbook_StepIsUnsealedToo(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	locker := must[*core.Locker](t)(core.New(on(node.Client()), core.WithTTL(5*time.Second))) // a Begin with a late answer fails
	defer locker.Close()
	begin := func() *claim.Claim {
		c := claim.New(locker, "http", claim.DefaultSettings())
		return must[claim.Outcome](t)(c.Begin(t.Context(), claim.Request{Key: "ann:1"})).Claim
	}
	step := func(k *claim.Claim) error {
		_, err := k.Step(t.Context(), "charge", func(context.Context) ([]byte, error) { return nil, errors.New("died") },
			func(error) bool { return false })
		return err
	}
	orphaned := func(key string) {
		for must[core.State](t)(locker.Inspect(t.Context(), key)).Status != core.Orphaned {
			time.Sleep(5 * time.Millisecond)
		}
	}
	k := begin()
	_ = step(k)
	k.Close()
	orphaned("claim:ann:1")
	ctl(t, 0, "-redis", node.Addr(), "unseal", "claim:ann:1") // all that the page says
	k = begin()
	if err := step(k); !errors.Is(err, claim.ErrUnknown) {
		t.Errorf("the retry's step: %v", err)
	}
	out, _ := ctl(t, 0, "-redis", node.Addr(), "ls", "claimstep:ann:1:")
	contains(t, out, "claimstep:ann:1:charge", "orphaned")
	out, _ = ctl(t, 0, "-redis", node.Addr(), "inspect", "claimstep:ann:1:charge")
	contains(t, out, "answer", "unknown: find out what the request did")
	ctl(t, 0, "-redis", node.Addr(), "unseal", "claimstep:ann:1:charge") // what it has to say
	if err := step(k); errors.Is(err, claim.ErrUnknown) {
		t.Errorf("after unseal: %v", err)
	}
	k.Close()
}
