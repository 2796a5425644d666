package testutil_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/zkbackend"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/internal/server"
)

// zookeeper reports whether ZooKeeper is here. It fails the test if it is missing and required.
func zookeeper(t *testing.T) bool {
	t.Helper()
	_, err := server.Find(server.ZooKeeper)
	if err != nil && server.Required() {
		t.Fatal(err)
	}
	if err != nil {
		t.Log(err)
	}
	return err == nil
}

func TestZooKeeper(t *testing.T) {
	t.Parallel()
	if !zookeeper(t) {
		return
	}
	node := testutil.ZooKeeper(t)
	locker, err := core.New(zkbackend.New([]string{node.Addr()}))
	if err != nil {
		t.Fatal(err)
	}
	defer locker.Close()
	if _, err := locker.Acquire(t.Context(), "stock:42"); err != nil {
		t.Error(err)
	}
	lock, err := locker.Acquire(t.Context(), "stock:43")
	if err != nil {
		t.Fatal(err)
	}

	node.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := server.AskZooKeeper(ctx, node.Addr(), "srvr"); err == nil {
		t.Error("a server that stands still answers")
	}
	node.Cont()
	node.Kill()
	node.Restart()
	if status := node.Ask("srvr"); !strings.Contains(status, "Mode: standalone") {
		t.Errorf("after a restart it says %q", status)
	}
	st, err := locker.Inspect(t.Context(), "stock:43")
	if lasts := lock.Context().Err() == nil; lasts && err == nil && st.Status != core.Held {
		t.Errorf("after a restart the key is %v", st.Status)
	}
}

// A leader that is killed has a successor. So has one that is cut off, which is no leader when it is
// back.
func TestZooKeeperEnsemble(t *testing.T) {
	t.Parallel()
	if !zookeeper(t) {
		return
	}
	nodes := testutil.ZooKeeperEnsemble(t)
	locker, err := core.New(zkbackend.New(nodes.Addrs()))
	if err != nil {
		t.Fatal(err)
	}
	defer locker.Close()
	nodes[nodes.Leader()].Kill() // the two others elect one
	if _, err := locker.Acquire(t.Context(), "stock:42", core.WithOutageWait(time.Minute)); err != nil {
		t.Error(err)
	}
	for _, n := range nodes {
		if _, err := server.AskZooKeeper(t.Context(), n.Addr(), "ruok"); err != nil {
			n.Restart()
		}
	}

	mode := func(n *testutil.ZooKeeperNode) string {
		_, mode, _ := strings.Cut(n.Ask("srvr"), "Mode: ")
		mode, _, _ = strings.Cut(mode, "\n")
		return mode
	}
	until := func(what string, done func() bool) {
		t.Helper()
		for begun := time.Now(); !done(); time.Sleep(10 * time.Millisecond) {
			if time.Since(begun) > time.Minute {
				t.Fatalf("%s: not within a minute", what)
			}
		}
	}
	complete := func() bool { // on a busy machine they may elect once more
		modes := []string{mode(nodes[0]), mode(nodes[1]), mode(nodes[2])}
		slices.Sort(modes)
		return slices.Equal(modes, []string{"follower", "follower", "leader"})
	}
	until("the killed one is back", complete)
	old := nodes.Leader()
	nodes[old].Isolate()
	others := testutil.ZooKeeperNodes{nodes[(old+1)%len(nodes)], nodes[(old+2)%len(nodes)]}
	others.Leader()
	nodes[old].Ask("ruok") // its clients reach it
	until("the old leader gives up", func() bool { return mode(nodes[old]) == "" })
	nodes[old].Rejoin()
	until("one leads, and two follow", complete)
}

func TestZooKeeper_Missing(t *testing.T) {
	withoutServers(t, "")
	r := record(t, func(t testing.TB) { testutil.ZooKeeper(t) })
	for _, word := range []string{"apt-get install libzookeeper-java", "brew install zookeeper", "testutil/servers"} {
		if !strings.Contains(r.fatal, word) {
			t.Errorf("%q does not say %q", r.fatal, word)
		}
	}
}
