package main

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/testutil"
)

// quorum returns three masters, onelanectl's view of them, and a Locker that takes them as new.
func quorum(t *testing.T) (testutil.Nodes, clients, *core.Locker) {
	t.Helper()
	nodes := testutil.Cluster(t, 3)
	b := redisbackend.New(nodes.Clients()...)
	b.NewInstallation = true
	b.NodeTimeout = 10 * time.Second
	locker := must[*core.Locker](t)(core.New(b, core.WithTTL(time.Minute)))
	t.Cleanup(func() { _ = locker.Close() })
	var cs clients
	for _, n := range nodes {
		cs = append(cs, n.Client())
	}
	return nodes, cs, locker
}

// An orphan of a key that was used before has an end beside its record.
func TestList_HeldOrphansOnAQuorum(t *testing.T) {
	t.Parallel()
	_, cs, locker := quorum(t)
	for _, key := range []string{"pay:fresh", "pay:used"} {
		if key == "pay:used" {
			k := must[*core.Lock](t)(locker.Acquire(t.Context(), key, core.WithOrphan(time.Hour)))
			if err := k.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		orphan(t, locker, key)
	}
	keys, _, err := cs.scan(t.Context(), search{"onelane:", "pay:", 10, true})
	if err != nil || !slices.Equal(keys, []string{"pay:fresh", "pay:used"}) {
		t.Errorf("ls -held finds %q, %v", keys, err)
	}
}

// A seal on a minority and two values on two minorities are decided, and keep nothing else from being forgotten.
func TestUnseal_UndecidedOnAQuorum(t *testing.T) {
	t.Parallel()
	nodes, cs, locker := quorum(t)
	write := func(n int, key, value string) {
		t.Helper()
		must[string](t)(nodes[n].Client().Set(t.Context(), "onelane:{"+key+"}:accepted", value, time.Hour).Result())
	}
	now := time.Now().UnixMicro()
	write(0, "a", fmt.Sprintf("%d 0 B3600000:shop-1/00000000000000000000000000000000;3600000", now))
	for i := range 2 {
		write(i, "x:a", fmt.Sprintf("%d 1 \x00%d:v%d", now+int64(i), now, i))
	}
	seal := func(key string) {
		t.Helper()
		if err := must[*core.Lock](t)(locker.Acquire(t.Context(), key)).Seal(t.Context(), []byte("v"), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	seal("x:b")
	nodes[2].Kill()
	run := func(args ...string) error {
		o := options{prefix: "onelane:", limit: 10, yes: true, args: args, timeout: 10 * time.Second}
		return o.on(t.Context(), locker, cs, &printer{w: t.Output()})
	}
	if err := run("unseal", "a"); err != nil {
		t.Errorf("unseal: %v", err)
	}
	if err := run("forget", "x:"); err == nil {
		t.Error("forget says nothing of the master that is down")
	}
	for _, key := range []string{"a", "x:a", "x:b"} {
		if st, err := locker.Inspect(t.Context(), key); err != nil || st.Status != core.Free {
			t.Errorf("%s is %v, %v", key, st.Status, err)
		}
	}
}

func TestList_KeyThatEndsAsASeal(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	locker := must[*core.Locker](t)(core.New(on(node.Client()), core.WithPrefix(""), core.WithTTL(time.Minute)))
	defer locker.Close()
	must[*core.Lock](t)(locker.Acquire(t.Context(), "job:accepted"))
	out, _ := ctl(t, 0, "-redis", node.Addr(), "-prefix", "", "ls")
	contains(t, out, "job:accepted")
}

// Without its time-out, ls takes 5 s on a Redis that hangs.
func TestList_TimeoutOnAHungRedis(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	node.Stop()
	t.Cleanup(node.Cont)
	took := time.Hour
	for try := 0; try < 3 && took > 4*time.Second; try++ { // the machine may be busy
		began := time.Now()
		ctl(t, 2, "-redis", node.Addr(), "-timeout", "200ms", "ls", "a")
		took = time.Since(began)
	}
	if took > 4*time.Second {
		t.Errorf("ls -timeout 200ms took %v", took)
	}
}

// Without its time-out, ls takes more than a minute on a ZooKeeper that hangs.
func TestList_TimeoutOnAHungZooKeeper(t *testing.T) {
	t.Parallel()
	node := testutil.ZooKeeper(t)
	ctl(t, 0, "-zookeeper", node.Addr(), "ls")
	node.Stop()
	t.Cleanup(node.Cont)
	began := time.Now()
	ctl(t, 2, "-zookeeper", node.Addr(), "-timeout", "200ms", "ls", "a")
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("ls -timeout 200ms took %v", took)
	}
}

// The record of a claim is on two nodes of three, which is a majority. One of them is down, so nobody can
// tell. Without -yes unseal must not delete the other copy: the retry would run again.
func TestUnseal_RecordWhoseMajorityIsNotSeen(t *testing.T) {
	t.Parallel()
	nodes, cs, locker := quorum(t)
	const key = "claim:ann:1"
	now := time.Now().UnixMicro()
	for _, n := range []int{0, 2} {
		must[string](t)(nodes[n].Client().Set(t.Context(), "onelane:{"+key+"}:accepted", fmt.Sprintf("%d 1 \x00%d:201", now, now), time.Hour).Result())
	}
	nodes[2].Kill()
	o := options{prefix: "onelane:", limit: 10, args: []string{"unseal", key}, timeout: 10 * time.Second}
	err := o.on(t.Context(), locker, cs, &printer{w: t.Output()})
	if !errors.Is(err, core.ErrUnavailable) || errors.Is(err, errNothing) {
		t.Errorf("unseal without -yes: %v", err)
	}
	if st, err := locker.Inspect(t.Context(), key); err == nil && st.Status == core.Free {
		t.Error("the record is deleted, and the retry runs again")
	}
}

// The server is down, so nobody knows what the key is. That is not "nothing to do".
func TestUnseal_ClaimOnAServerThatIsDown(t *testing.T) {
	t.Parallel()
	_, errs := ctl(t, 2, "-redis", "127.0.0.1:1", "unseal", "claim:ann:1")
	contains(t, errs, "127.0.0.1:1")
}
