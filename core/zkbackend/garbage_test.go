package zkbackend_test

import (
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/zkbackend"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
)

// A key that is released, and one whose last holder died, leave nothing.
func TestGarbage_NothingStays(t *testing.T) {
	t.Parallel()
	const lease = 2 * time.Second // a busy server may take as long as 200 ms to answer
	node := shared(t)
	dead := open(t, at(t, node.Addr()))
	for i := range 100 {
		g, err := dead.Acquire(t.Context(), request(fmt.Sprint("released", i), time.Minute))
		ok(t, "Acquire", err)
		_, err = dead.Release(t.Context(), g)
		ok(t, "Release", err)
	}
	if left := keyNodes(t, node.Addr(), rootOf(t)); len(left) > 0 {
		t.Fatalf("released keys leave %v", left)
	}
	for i := range 20 {
		eventually(t, "a lease or a seal", func() bool { // before the lease ends
			g, err := dead.Acquire(t.Context(), request(fmt.Sprint("dead", i), lease))
			if err == nil && i%2 == 0 {
				err = dead.Seal(t.Context(), g, make([]byte, 600<<10), lease)
			}
			return err == nil
		})
	}
	orphan := request("orphan", lease)
	orphan.Orphan = 10 * time.Second // long enough to be seen
	acquire(t, dead, orphan)
	ok(t, "Close", dead.Close())

	other := open(t, at(t, node.Addr()))
	live, err := other.Acquire(t.Context(), request("live", time.Hour))
	ok(t, "Acquire", err)
	seen, left := false, ""
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("left:", left)
		}
	})
	eventually(t, "the sweep", func() bool {
		ok(t, "Sweep", zkbackend.Sweep(t.Context(), other))
		left = strings.Join(keyNodes(t, node.Addr(), rootOf(t)), " ")
		fresh := open(t, at(t, node.Addr()))
		st, err := fresh.Inspect(t.Context(), "orphan")
		ok(t, "Close", fresh.Close()) // before it sweeps: other would not see the orphan begin
		seen = seen || err == nil && st.Status == core.Orphaned
		time.Sleep(250 * time.Millisecond) // each turn has a session of its own
		// A seal that this process did not see begin ends by the leader's clock, a minute later.
		return !strings.Contains(left, "orphan") && strings.Count(left, "dead") == 2*10+10
	})
	if !seen {
		t.Error("a process that has not seen the lease was not told of the orphan")
	}
	_, err = other.Release(t.Context(), live)
	ok(t, "Release of a lease that the sweep left alone", err)
}

var watchCount = regexp.MustCompile(`Total watches:(\d+)`)

func watchesOf(t *testing.T, node *testutil.ZooKeeperNode) int {
	t.Helper()
	found := watchCount.FindStringSubmatch(node.Ask("wchs"))
	if found == nil {
		t.Fatalf("no count in %q", node.Ask("wchs"))
	}
	n, err := strconv.Atoi(found[1])
	ok(t, "Atoi", err)
	return n
}

// Waits that are given up leave one watch for each key, until its holder renews or releases it. Not
// parallel: it counts all watches of the server.
func TestWatch_AbandonedWaitsLeaveNothing(t *testing.T) {
	const keys = 20
	waits, most := 50_000, int64(2<<20)
	if check.Long {
		waits, most = 2*waits, 2*most
	}
	node := shared(t)
	holder, waiter := open(t, at(t, node.Addr())), open(t, at(t, node.Addr()))
	grants := make([]core.Grant, keys)
	wait := func(i int) {
		_, stop, err := waiter.Watch(t.Context(), grants[i%keys].Key)
		ok(t, "Watch", err)
		stop()
	}
	for i := range grants {
		g, err := holder.Acquire(t.Context(), request(fmt.Sprint("k", i), time.Hour))
		ok(t, "Acquire", err)
		grants[i] = g
		wait(i)
	}
	before, goroutines := heap(), runtime.NumGoroutine()
	for i := range waits {
		wait(i)
	}
	if n := watchesOf(t, node); n > keys {
		t.Errorf("ZooKeeper keeps %d watches for %d keys", n, keys)
	}
	if grown := int64(heap()) - int64(before); grown > most {
		t.Errorf("%d waits leave %d bytes", waits, grown)
	}
	if n := runtime.NumGoroutine(); n > goroutines+8 {
		t.Errorf("%d goroutines after %d", n, goroutines)
	}
	for i, g := range grants { // a renewal ends half of them, a release the others
		if i%2 == 0 {
			_, err := holder.Extend(t.Context(), g, 2*time.Hour)
			ok(t, "Extend", err)
		} else {
			_, err := holder.Release(t.Context(), g)
			ok(t, "Release", err)
		}
	}
	eventually(t, "ZooKeeper keeps no watches", func() bool { return watchesOf(t, node) == 0 })

	// Keys that were never used leave none at all.
	for i := range 1000 {
		_, stop, err := waiter.Watch(t.Context(), fmt.Sprint("unused", i))
		ok(t, "Watch", err)
		stop()
	}
	if n := watchesOf(t, node); n != 0 {
		t.Errorf("ZooKeeper keeps %d watches of keys that nobody holds", n)
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A renewal wakes no waiter, and the release that follows does. Not parallel: it counts all watches
// of the server.
func TestWatch_RenewalIsNoSignal(t *testing.T) {
	node := shared(t)
	holder, waiter := open(t, at(t, node.Addr())), open(t, at(t, node.Addr()))
	g, err := holder.Acquire(t.Context(), request("k", time.Hour))
	ok(t, "Acquire", err)
	changed, stop, err := waiter.Watch(t.Context(), "k")
	ok(t, "Watch", err)
	defer stop()
	select {
	case <-changed: // of the new session
	default:
	}
	for range 20 {
		g, err = holder.Extend(t.Context(), g, 2*time.Hour)
		ok(t, "Extend", err)
		eventually(t, "the watch is set again", func() bool { return watchesOf(t, node) == 1 })
	}
	select {
	case <-changed:
		t.Error("a renewal woke a waiter")
	default:
	}
	_, err = holder.Release(t.Context(), g)
	ok(t, "Release", err)
	select {
	case <-changed:
	case <-time.After(patience):
		t.Error("the release woke no waiter")
	}
}

// Values larger than ZooKeeper's nodes may be are kept in pieces, which go with the seal.
func TestSeal_LargeValues(t *testing.T) {
	t.Parallel()
	node := shared(t)
	b := open(t, at(t, node.Addr(), zkbackend.WithTimeout(patience)))
	for _, size := range []int{0, 512 << 10, 512<<10 + 1, 1 << 20, 16 << 20} {
		g, err := b.Acquire(t.Context(), request("k", time.Hour))
		ok(t, "Acquire", err)
		value := make([]byte, size)
		for i := range value {
			value[i] = byte(i / 1000)
		}
		ok(t, "Seal", b.Seal(t.Context(), g, value, time.Hour))
		ok(t, "Seal again", b.Seal(t.Context(), g, value, time.Hour))
		_, err = b.Acquire(t.Context(), request("k", time.Hour))
		sealed, is := errors.AsType[*core.SealedError](err)
		if !is || string(sealed.Value) != string(value) {
			t.Fatalf("a value of %d bytes: %v", size, err)
		}
		ok(t, "Unseal", b.Unseal(t.Context(), "k"))
		if left := keyNodes(t, node.Addr(), rootOf(t)); len(left) > 0 {
			t.Fatalf("a value of %d bytes leaves %v", size, left)
		}
	}
	g, err := b.Acquire(t.Context(), request("k", time.Hour))
	ok(t, "Acquire", err)
	err = b.Seal(t.Context(), g, make([]byte, 16<<20+1), time.Hour)
	if err == nil || isUnavailable(err) || !strings.Contains(err.Error(), "at most 16777216") {
		t.Errorf("a value that is too large: %v", err)
	}
	_, err = b.Release(t.Context(), g)
	ok(t, "Release", err)
}

// An answer that comes after the sweep has removed the node does not make the lease that ended seem
// to begin anew.
func TestSweep_LateAnswer(t *testing.T) {
	t.Parallel()
	b := open(t, at(t, shared(t).Addr()))
	acquire(t, b, request("k", time.Second))
	eventually(t, "the lease has ended", func() bool {
		st, err := b.Inspect(t.Context(), "k")
		return err == nil && st.Status == core.Free
	})
	status, err := zkbackend.LateAnswer(t.Context(), b, "k", func() {
		ok(t, "Sweep", zkbackend.Sweep(t.Context(), b))
		if st, err := b.Inspect(t.Context(), "k"); err != nil || st.Status != core.Free {
			t.Errorf("the key is %v, %v after the sweep", st.Status, err)
		}
	})
	ok(t, "read", err)
	if status != core.Free {
		t.Errorf("the key is %v after its lease has ended", status)
	}
}

// The sweep writes down an orphan while the answer to a read is under way.
func TestSweep_LateAnswerOfAnOrphan(t *testing.T) {
	t.Parallel()
	b := open(t, at(t, shared(t).Addr()))
	r := request("k", time.Second)
	r.Orphan = time.Hour
	acquire(t, b, r)
	eventually(t, "the key is an orphan", func() bool {
		st, err := b.Inspect(t.Context(), "k")
		return err == nil && st.Status == core.Orphaned
	})
	status, err := zkbackend.LateAnswer(t.Context(), b, "k", func() { ok(t, "Sweep", zkbackend.Sweep(t.Context(), b)) })
	ok(t, "read", err)
	if status != core.Orphaned {
		t.Errorf("the key is %v, want orphaned", status)
	}
}

// A process that stands back takes a signal for the turn of another process. So a waiter gets none
// for what it finds at first.
func TestWatch_NoSignalAtFirst(t *testing.T) {
	t.Parallel()
	b := open(t, at(t, shared(t).Addr()))
	changed, stop, err := b.Watch(t.Context(), "onelane:{free at first}")
	ok(t, "Watch", err)
	defer stop()
	select {
	case <-changed:
		t.Error("a waiter got a signal, although nothing changed")
	default:
	}
}
