package idempotency

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/claim"
)

var (
	// ErrStepUnknown means that an earlier run began a [Step] and nobody knows whether it was done.
	ErrStepUnknown = errors.New("idempotency: the outcome of a step is unknown; ask the other system, with the key of DeriveKey")
	// ErrNothingDone is an error for the function of a [Step] to return. An error that matches it
	// frees the step.
	ErrNothingDone = claim.ErrNothingDone
)

// Step runs fn at most once for each name and the key of the innermost claim that ctx carries. A
// handler that runs again, after [Recover] or with [RunAgain], gets the recorded result and fn does
// not run.
//
//	charge, err := idempotency.Step(ctx, "charge", func(ctx context.Context) (Charge, error) { … })
//
// The rules of a step:
//
//   - If fn fails, or the process dies in the middle of fn, the outcome of the step is unknown. A
//     later run then gets [ErrStepUnknown]: ask the other system, with the same [DeriveKey], what
//     happened.
//   - If the error of fn matches [ErrNothingDone], a later run calls fn again.
//   - The result is recorded as JSON, and the first run gets it as it was read back, too. A type
//     that JSON does not keep whole is refused before fn runs, as by [Do].
//   - A result is kept for the time of [Retain] plus that of [MaxRun] plus ten minutes. If
//     [RetainFor] is longer than Retain, it counts instead. The time begins when the result is
//     recorded. A retry that comes later calls fn again.
//   - A step that is undone stays done: a later run skips the charge although it was paid back. So
//     record why it is undone first, as the result of a step. A later run then ends in the same
//     way.
//   - If a new version of the service changes T, keep the name, and let T read what was recorded
//     before. Under another name fn would run again.
//   - Step costs two round trips, or one if the result is recorded already.
//   - Without a claim the error is [ErrNoClaim]. A claim of [RefuseRepeats] does not count: the
//     same form has the same key when it is sent again later.
func Step[T any](ctx context.Context, name string, fn func(context.Context) (T, error)) (T, error) {
	f := &typed[T]{fn: fn}
	k, ok := claim.Keyed(ctx)
	if !ok {
		return f.value, ErrNoClaim
	}
	if err := keeps[T](); err != nil {
		return f.value, fmt.Errorf("idempotency: step %q: %w", name, err)
	}
	recorded, err := k.Step(ctx, name, func(ctx context.Context) ([]byte, error) {
		if err := f.run(ctx); err != nil {
			return nil, err
		}
		return f.record()
	}, func(err error) bool { return errors.Is(err, ErrNothingDone) })
	switch {
	case errors.Is(err, claim.ErrUnknown):
		return f.value, fmt.Errorf("idempotency: step %q: %w: %w", name, ErrStepUnknown, err)
	case err != nil:
		return f.value, err
	case recorded == nil:
		return f.value, nil
	}
	if err := f.replay(recorded); err != nil {
		return f.value, fmt.Errorf("idempotency: step %q: the recorded result is no %T; let the type read it: under another name the step would run again: %w", name, f.value, err)
	}
	return f.value, nil
}

// DeriveKey returns a key for a call that the handler makes to another system, for example the
// idempotency key of a charge. It is the same in every run of the request, and differs for each
// name. It has 32 capital letters and digits, so it can also be the order number for Alipay, WeChat
// Pay or UnionPay. It is made of the key of the claim that [Step] uses and, without a principal, of
// the caller's credentials. Give a [Principal] if a retry may come with a new token or cookie.
// Without such a claim the error is [ErrNoClaim].
func DeriveKey(ctx context.Context, name string) (string, error) {
	k, ok := claim.Keyed(ctx)
	if !ok {
		return "", ErrNoClaim
	}
	parts := []string{"onelane derived key", k.Namespace(), k.Effects(), name}
	// Without a principal the key does not name the caller.
	if c := k.Fingerprint().Credentials; c != [sha256.Size]byte{} {
		parts = append(parts, string(c[:]))
	}
	sum := sha256.Sum256([]byte(core.Join(parts...)))
	return base32.StdEncoding.EncodeToString(sum[:20]), nil
}
