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

// errNothing reports that the command had nothing to do, and errFree that it had nothing to show.
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
	case "find", "erase", "answer":
		return o.support(ctx, locker, at, out)
	}
	key, before, err := claim.Look(ctx, locker, o.args[1])
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
		case unknown && claim.IsClaim(key) && !o.yes:
			return fmt.Errorf("key %q may have a record on a node that does not answer; with -yes it is deleted, and the request may run again: nothing was done: %w", key, err)
		case unknown:
		case before.Status == core.Sealed && claim.IsClaim(key) && !o.yes: // it may have come since the operator looked
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
	starts, forgotten, held := []string{o.args[1]}, 0, 0
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
				if err == nil && st.Status == core.Held {
					held++
				}
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
	case held > 0 && o.args[0] == "erase":
		return fmt.Errorf("%d keys are held by running requests: erase again when they have ended", held)
	case forgotten == 0:
		return fmt.Errorf("no sealed or orphaned key begins with %q: %w", o.args[1], errNothing)
	case !o.yes:
		return fmt.Errorf("pass -yes to delete these %d keys: %w", forgotten, errNothing)
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
		if ctx.Err() != nil { // even if the reader of the lines was slow
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
