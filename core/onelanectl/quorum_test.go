package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
)

// quorum returns three masters, onelanectl's view of them, and a Locker that takes them as new.
func quorum(t *testing.T) (testutil.Nodes, clients, *core.Locker) {
	t.Helper()
	nodes := testutil.Cluster(t, 3)
	b := redisbackend.New(nodes.Clients()...)
	b.NewInstallation = true
	b.NodeTimeout = 10 * time.Second
	locker := must[*core.Locker](t)(core.New(b, core.WithTTL(30*time.Second)))
	t.Cleanup(func() { _ = locker.Close() })
	var cs clients
	for _, n := range nodes {
		cs = append(cs, n.Client())
	}
	return nodes, cs, locker
}

// Each command needs all masters: one of them does not know whether a key is held or free.
func TestQuorum_OneMasterIsNotEnough(t *testing.T) {
	t.Parallel()
	nodes, cs, locker := quorum(t)
	k := must[*core.Lock](t)(locker.Acquire(t.Context(), "a{b}"))
	check.Eventually(t, "all masters have the lock", func() bool {
		n := 0
		for _, c := range cs {
			n += int(c.Exists(t.Context(), "onelane:{a%7Bb%7D}").Val())
		}
		return n == len(cs)
	})
	one := []string{"-redis", nodes[0].Addr()}
	for _, args := range [][]string{{"inspect", "a{b}"}, {"release", "a{b}", "-owner", k.Owner()}, {"ls"}} {
		out, errs := ctl(t, 2, append(args, one...)...)
		contains(t, errs, "one master of a quorum", "all masters")
		if strings.Contains(out, "a{b}") {
			t.Errorf("%s says %q", args[0], out)
		}
	}
	var all []string
	for _, n := range nodes {
		all = append(all, n.Addr())
	}
	out, _ := ctl(t, 0, "-redis", strings.Join(all, ","), "release", "a{b}", "-owner", k.Owner())
	contains(t, out, "released a{b}")
	check.Eventually(t, "the first master has no lock", func() bool { return cs[0].Exists(t.Context(), "onelane:{a%7Bb%7D}").Val() == 0 })
	for _, args := range [][]string{{"inspect", "a{b}"}, {"release", "a{b}", "-owner", k.Owner()}} {
		out, errs := ctl(t, 2, append(args, one...)...)
		contains(t, errs, "one master of a quorum", "all masters")
		if out != "" {
			t.Errorf("%s says %q", args[0], out)
		}
	}
}

// Commands on a quorum: a held key is known at once, and a free one when the masters have a vote.
func TestCommands_Quorum(t *testing.T) {
	t.Parallel()
	nodes, cs, locker := quorum(t)
	k := must[*core.Lock](t)(locker.Acquire(t.Context(), "order:42", core.WithTag("till 3")))
	run := func(args ...string) (string, error) {
		var out bytes.Buffer
		o := options{prefix: "onelane:", limit: 10, owner: k.Owner(), args: args, timeout: 10 * time.Second}
		err := o.on(t.Context(), locker, cs, &printer{w: &out})
		return out.String(), err
	}
	for _, args := range [][]string{{"inspect", "order:42"}, {"ls", "order:"}} {
		out, err := run(args...)
		if err != nil {
			t.Error(err)
		}
		contains(t, out, "order:42", "held", "till 3")
	}
	if _, err := run("unseal", "order:42"); !errors.Is(err, errNothing) {
		t.Errorf("unseal of a held key: %v", err)
	}
	out, err := run("release", "order:42")
	if err != nil {
		t.Error(err)
	}
	contains(t, out, "released order:42")
	out, err = run("inspect", "order:42")
	if !errors.Is(err, errFree) {
		t.Errorf("inspect of a free key: %v", err)
	}
	contains(t, out, "free")
	if _, err := run("forget", "order:"); !errors.Is(err, errNothing) {
		t.Errorf("forget: %v", err)
	}
	var addrs []string
	for _, n := range nodes {
		addrs = append(addrs, n.Addr())
	}
	_, errs := ctl(t, 2, "-redis", strings.Join(addrs, ","), "inspect", "order:42")
	contains(t, errs, "just started")
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

// The server is down, so nobody knows what the key is. That is not "nothing to do".
func TestUnseal_ClaimOnAServerThatIsDown(t *testing.T) {
	t.Parallel()
	_, errs := ctl(t, 2, "-redis", "127.0.0.1:1", "unseal", "claim:ann:1")
	contains(t, errs, "127.0.0.1:1")
}
