package main

import (
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// "Nothing is held" must not be the answer to a user who may not look. The user is the one of
// doc.go, with SCAN for ls.
func TestList_HeldWithoutPermission(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	if !node.Real() {
		return // a miniredis has no ACL
	}
	must[any](t)(node.Client().Do(t.Context(), "ACL", "SETUSER", "onelane", "reset", "on", ">secret", "~onelane:*", "&onelane:*",
		"+eval", "+evalsha", "+get", "+set", "+del", "+pttl", "+pexpire", "+time", "+hello", "+ping", "+info", "+scan").Result())
	locker := must[*core.Locker](t)(core.New(on(node.Client()), core.WithTTL(time.Minute)))
	defer locker.Close()
	must[*core.Lock](t)(locker.Acquire(t.Context(), "job:1"))
	at := "redis://onelane:secret@" + node.Addr()
	out, _ := ctl(t, 0, "-redis", at, "ls", "job:")
	contains(t, out, "job:1", "held")
	_, errs := ctl(t, 2, "-redis", at, "ls", "-held", "job:")
	contains(t, errs, "NOPERM", "getrange")
}
