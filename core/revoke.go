package core

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"
)

// Revoke frees a key that owner holds, as [Locker.Inspect] told it in State.Owner: for the person on call, when a
// holder hangs and cannot be ended. Its holder, if it lives, learns at its next renewal that the lock is lost, and may
// work on until then: only what checks its fencing token is safe from it. The error matches [ErrLost], and nothing
// happened, if the key is free, sealed or in the hands of another.
func (l *Locker) Revoke(ctx context.Context, key, owner string) error {
	name, err := backendKey(l.prefix, key)
	if err != nil {
		return err
	}
	if owner == "" || strings.IndexFunc(owner, unicode.IsControl) >= 0 { // a seal begins with NUL
		return fmt.Errorf("core: revoke key %q: owner %q is none; take it from Inspect", key, owner)
	}
	g := Grant{Key: name, Owner: owner, Deadline: time.Now().Add(l.ttl)}
	return told(ctx, key, named(l.backend.Release(ctx, g), key))
}
