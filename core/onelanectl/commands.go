package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/claim"
)

// errNothing says that there was nothing to do, and errFree that there is nothing to show.
var (
	errNothing = errors.New("nothing was done")
	errFree    = errors.New("there is nothing under this key")
)

// do runs the command.
func (o *options) do(ctx context.Context, stdout io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	at, err := o.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, at.Close()) }()
	locker, err := core.New(at.opener(o.timeout), core.WithPrefix(o.prefix))
	if err != nil {
		return err
	}
	defer locker.Close()
	return o.on(ctx, locker, at, &printer{w: stdout, json: o.json, value: o.value})
}

// on runs the command on the keys of a Locker.
func (o *options) on(ctx context.Context, locker *core.Locker, at place, out *printer) error {
	switch o.args[0] {
	case "ls":
		return o.list(ctx, locker, at, out)
	case "forget":
		return o.forget(ctx, locker, at, out)
	}
	key, before, err := look(ctx, locker, o.args[1])
	// Nobody may know the state of a key whose value is on a minority of a quorum. Unseal decides it.
	unknown := o.args[0] == "unseal" && errors.Is(err, core.ErrUnavailable)
	if err != nil && !unknown {
		return err
	}
	if cs, redis := at.(clients); redis && err == nil && before.Status == core.Free {
		if err := cs.alone(ctx, o.prefix, key); err != nil {
			return err
		}
	}
	done := "released"
	switch o.args[0] {
	case "inspect":
		if err := out.one(key, before); err != nil || before.Status != core.Free {
			return err
		}
		return fmt.Errorf("key %q is free: %w", key, errFree)
	case "unseal":
		done = "unsealed"
		switch {
		case unknown && isClaim(key) && !o.yes:
			return fmt.Errorf("key %q may have a record on a node that does not answer; with -yes it is deleted, and the request may run again: nothing was done: %w", key, err)
		case unknown:
		case before.Status == core.Sealed && isClaim(key) && !o.yes: // it may have come since the operator looked
			return fmt.Errorf("key %q has a record, so its outcome is known; with -yes the record is deleted, and the request may run again: %w", key, errNothing)
		case before.Status != core.Sealed && before.Status != core.Orphaned:
			return fmt.Errorf("key %q is %v, not sealed or orphaned: %w", key, before.Status, errNothing)
		}
		if err := unseal(ctx, locker, key, !unknown); err != nil {
			return err
		}
	case "release":
		if err := locker.Revoke(ctx, key, o.owner); err != nil {
			return fmt.Errorf("%w; it is %v%s", err, before.Status, by(before))
		}
	}
	return out.done(key, done)
}

// look returns the key of a lock and its state. The log may name a claim without its prefix.
func look(ctx context.Context, l *core.Locker, key string) (string, core.State, error) {
	found, st, err := lookWhole(ctx, l, key)
	nothing := err == nil && st.Status == core.Free || errors.Is(err, core.ErrInvalidKey)
	if !nothing || isClaim(key) {
		return found, st, err
	}
	ofClaim, claimed, failed := lookWhole(ctx, l, claim.KeyPrefix+key)
	if failed == nil && claimed.Status == core.Free {
		return found, st, err
	}
	return ofClaim, claimed, failed
}

// lookWhole returns the key of a lock and its state. ls has the key of the lock itself. The log has
// the whole key of a claim, whose lock may have a hash in its key. A whole key can look like that of
// a lock, so both are tried. One that ls may have shown is not free if it cannot be read.
func lookWhole(ctx context.Context, l *core.Locker, key string) (string, core.State, error) {
	st, err := l.Inspect(ctx, key)
	whole := lockKey(l, key)
	if whole == key || err == nil && st.Status != core.Free || err != nil && !errors.Is(err, core.ErrInvalidKey) {
		return key, st, err
	}
	other, failed := l.Inspect(ctx, whole)
	if failed == nil && other.Status == core.Free && (err == nil || strings.Contains(key, claim.HashMark)) {
		return key, st, err
	}
	return whole, other, failed
}

// lockKey returns the key of the lock of a claim or step with this whole key, and other keys as
// they are.
func lockKey(l *core.Locker, key string) string {
	for _, prefix := range []string{claim.KeyPrefix, claim.StepPrefix} {
		if rest, ok := strings.CutPrefix(key, prefix); ok {
			return claim.LockKey(l, prefix, rest)
		}
	}
	return key
}

// isClaim reports whether a key is that of a claim or of a step.
func isClaim(key string) bool {
	return strings.HasPrefix(key, claim.KeyPrefix) || strings.HasPrefix(key, claim.StepPrefix)
}

// unseal frees a key that is known to be sealed or orphaned, or else may be. Locker.Unseal says
// nothing of a key that is held.
func unseal(ctx context.Context, locker *core.Locker, key string, known bool) error {
	if err := locker.Unseal(ctx, key); err != nil || known {
		return err
	}
	if st, err := locker.Inspect(ctx, key); err == nil && st.Status == core.Held {
		return fmt.Errorf("key %q is held%s: it was not sealed, or somebody has taken it since: %w", key, by(st), errNothing)
	}
	return nil
}

func by(st core.State) string {
	if st.Owner == "" {
		return ""
	}
	return fmt.Sprintf(" by %q", st.Owner)
}

// forget unseals the sealed and orphaned keys that begin with the argument, and the steps of
// claims. A server that is down, or a key that cannot be unsealed, does not keep it from the
// others.
func (o *options) forget(ctx context.Context, locker *core.Locker, at place, out *printer) error {
	starts, forgotten := []string{o.args[1]}, 0
	if rest, ok := strings.CutPrefix(o.args[1], claim.KeyPrefix); ok {
		starts = append(starts, claim.StepPrefix+rest)
	}
	var failed error
	for _, start := range starts {
		keys, more, err := at.scan(ctx, search{o.prefix, start, o.limit, false})
		failed = errors.Join(failed, err)
		for _, key := range keys {
			st, err := locker.Inspect(ctx, key)
			if o.foreign(err) || err == nil && st.Status != core.Sealed && st.Status != core.Orphaned {
				continue
			}
			done := "would forget"
			if o.yes {
				done, err = "forgot", unseal(ctx, locker, key, err == nil)
			}
			if err == nil {
				err = out.done(key, done)
			}
			if err != nil {
				failed = errors.Join(failed, err)
				continue
			}
			forgotten++
		}
		if more {
			return errors.Join(failed, fmt.Errorf("there are more than %d keys: run it again, or raise -limit", o.limit))
		}
	}
	if failed != nil {
		return failed
	}
	switch {
	case forgotten == 0:
		return fmt.Errorf("no sealed or orphaned key begins with %q: %w", o.args[1], errNothing)
	case !o.yes:
		return fmt.Errorf("pass -yes to forget these %d keys: %w", forgotten, errNothing)
	}
	return nil
}

// foreign reports whether err says that a key is another program's: without a prefix, all keys of
// the database come by. With a prefix, the operator has to know of a key that cannot be read. A
// newer version may have written it.
func (o *options) foreign(err error) bool {
	return o.prefix == "" && errors.Is(err, core.ErrInvalidKey)
}

// list prints the keys that begin with the argument, in their order.
func (o *options) list(ctx context.Context, locker *core.Locker, at place, out *printer) error {
	var start string
	if len(o.args) > 1 {
		start = o.args[1]
	}
	keys, more, err := at.scan(ctx, search{o.prefix, start, o.limit, o.held})
	rows := 0
	for _, key := range keys {
		if ctx.Err() != nil { // also if the reader of the lines was slow
			err = errors.Join(err, fmt.Errorf("the list is not complete: %w", ctx.Err()))
			break
		}
		st, inspected := locker.Inspect(ctx, key)
		switch {
		case o.foreign(inspected):
		case inspected != nil:
			err = errors.Join(err, inspected)
		case st.Status == core.Sealed && o.held: // it was sealed after the scan
		case st.Status != core.Free && rows == o.limit:
			more = true
		case st.Status != core.Free:
			err = errors.Join(err, out.row(key, st))
			rows++
		}
		if more && rows == o.limit {
			break
		}
	}
	err = errors.Join(err, out.flush())
	if more && err == nil {
		return fmt.Errorf("there are more than %d keys: ask for a longer prefix, or raise -limit", o.limit)
	}
	return err
}
