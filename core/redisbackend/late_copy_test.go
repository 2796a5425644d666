package redisbackend_test

import (
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// A copy of Acquire that arrives after an Extend does not shorten the lease.
func TestAcquire_LateCopyAfterExtend(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	for name, b := range map[string]core.Backend{"client": open(t, one(node.Client())), "pool": open(t, pooled(node.Pool()))} {
		q := attempt("{"+name+"}", time.Minute, 0)
		q.Token = true
		g, err := b.Acquire(t.Context(), q)
		ok(t, "Acquire", err)
		g, err = b.Extend(t.Context(), g, time.Hour)
		ok(t, "Extend", err)
		_, err = b.Acquire(t.Context(), q) // the same request
		ok(t, "the copy", err)
		if left := node.Client().PTTL(t.Context(), q.Key).Val(); left < 30*time.Minute {
			t.Errorf("%s: Redis keeps the key for %v, and its holder for %v", name, left, time.Until(g.Deadline))
		}
	}
}

// A copy of Acquire that arrives after an Extend, while memory is short, does not free its holder's key.
func TestAcquire_LateCopyWithoutMemory(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	b := open(t, one(node.Client()))
	q := attempt("{k}", time.Minute, 0)
	q.Token = true
	g, err := b.Acquire(t.Context(), q)
	ok(t, "Acquire", err)
	_, err = b.Extend(t.Context(), g, time.Hour)
	ok(t, "Extend", err)
	ok(t, "CONFIG SET", node.Client().ConfigSet(t.Context(), "maxmemory", "1").Err())
	_, _ = b.Acquire(t.Context(), q) // the same request
	if st, err := b.Inspect(t.Context(), q.Key); err != nil || st.Status != core.Held || st.Owner != q.Owner {
		t.Errorf("the holder has an hour left, and the key is %v of %q, %v", st.Status, st.Owner, err)
	}
}

// An Unseal that fails because the counter is another program's has not freed the key.
func TestUnseal_ForeignCounter(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	b, admin := open(t, one(node.Client())), node.Client()
	q := attempt("{k}", time.Minute, 0)
	q.Token = true
	g, err := b.Acquire(t.Context(), q)
	ok(t, "Acquire", err)
	ok(t, "Seal", b.(core.Sealer).Seal(t.Context(), g, []byte("v"), time.Hour))
	ok(t, "DEL", admin.Del(t.Context(), "{k}:fence").Err())
	ok(t, "LPUSH", admin.LPush(t.Context(), "{k}:fence", "foreign").Err())
	if err := b.(core.Sealer).Unseal(t.Context(), "{k}"); err == nil {
		t.Fatal("unsealed over a foreign counter")
	}
	if st, err := b.Inspect(t.Context(), "{k}"); err != nil || st.Status != core.Sealed {
		t.Errorf("Unseal failed, and the key is %v, %v", st.Status, err)
	}
}
