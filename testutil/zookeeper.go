package testutil

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/testutil/internal/server"
)

// ZooKeeperNode is a ZooKeeper server of one test, a separate process. Its methods fail the test it
// was made for.
type ZooKeeperNode struct {
	t       testing.TB
	process *server.Server
	links   *zookeeperLinks // nil for a node without peers
	index   int
}

// ZooKeeper starts an empty ZooKeeper on a free loopback port and ends it with the test. The
// settings are lines of its configuration, for example "tickTime=100". It needs ZooKeeper and Java.
// If they are not installed, the test fails.
//
//	node := testutil.ZooKeeper(t)
//	locker, err := core.New(zkbackend.New([]string{node.Addr()}))
//	if err != nil {
//		t.Fatal(err)
//	}
//	defer locker.Close()
//	if _, err := locker.Acquire(t.Context(), "stock:42"); err != nil {
//		t.Error(err)
//	}
func ZooKeeper(t testing.TB, settings ...string) *ZooKeeperNode {
	t.Helper()
	process, err := server.StartZooKeeper(context.Background(), settings...)
	if err != nil {
		t.Fatalf("testutil: %v; %s", err, server.Advice)
	}
	t.Cleanup(process.Stop)
	return &ZooKeeperNode{t: t, process: process}
}

// Addr is the node's address, host:port.
func (n *ZooKeeperNode) Addr() string { return n.process.Addr }

// Kill ends the process with SIGKILL and returns when it is gone.
func (n *ZooKeeperNode) Kill() { n.process.Kill() }

// Stop stops the process with SIGSTOP and returns when it stands still: connections stay open and
// nothing answers until Cont.
func (n *ZooKeeperNode) Stop() {
	n.t.Helper()
	n.must(n.process.Pause())
}

// Cont lets a stopped process go on, with SIGCONT.
func (n *ZooKeeperNode) Cont() {
	n.t.Helper()
	n.must(n.process.Resume())
}

// Restart starts the process anew on the same port and with its data, killing it first if it still
// runs. It returns when the node serves.
func (n *ZooKeeperNode) Restart() {
	n.t.Helper()
	n.must(n.process.Restart(context.Background()))
}

// Isolate cuts the node off from the others: nothing gets through, and connections stay open. Its
// clients still reach it. It needs ZooKeeperEnsemble, and Linux.
func (n *ZooKeeperNode) Isolate() {
	n.t.Helper()
	switch {
	case n.links == nil:
		n.t.Fatal("testutil: ZooKeeperNode.Isolate: the node has no peers; use ZooKeeperEnsemble")
	case !manyLoopbackAddresses:
		n.t.Fatal("testutil: ZooKeeperNode.Isolate needs the loopback addresses 127.0.0.0/8; run the test on Linux")
	}
	n.links.isolate(n.index, true)
}

// Rejoin ends Isolate.
func (n *ZooKeeperNode) Rejoin() { n.links.isolate(n.index, false) }

// Ask returns the answer to a command of four letters, such as "wchs" or "srvr".
func (n *ZooKeeperNode) Ask(command string) string {
	n.t.Helper()
	for end := time.Now().Add(formTimeout); ; { // a busy server may miss the time-out
		answer, err := server.AskZooKeeper(context.Background(), n.Addr(), command)
		if err == nil {
			return answer
		}
		if time.Now().After(end) {
			n.t.Fatalf("testutil: %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (n *ZooKeeperNode) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatalf("testutil: %v", err)
	}
}

// ZooKeeperNodes are the servers of an ensemble.
type ZooKeeperNodes []*ZooKeeperNode

// ZooKeeperEnsemble starts three ZooKeeper servers that form an ensemble, and ends them with the
// test. It returns when each of them serves. The settings are as for ZooKeeper.
//
//	nodes := testutil.ZooKeeperEnsemble(t)
//	locker, err := core.New(zkbackend.New(nodes.Addrs()))
//	if err != nil {
//		t.Fatal(err)
//	}
//	defer locker.Close()
//	nodes[nodes.Leader()].Kill() // the two others elect one
//	if _, err := locker.Acquire(t.Context(), "stock:42", core.WithOutageWait(time.Minute)); err != nil {
//		t.Error(err)
//	}
func ZooKeeperEnsemble(t testing.TB, settings ...string) ZooKeeperNodes {
	t.Helper()
	links := newZooKeeperLinks(t)
	processes, err := server.StartEnsemble(context.Background(), 3, links.route, settings...)
	if err != nil {
		t.Fatalf("testutil: %v; %s", err, server.Advice)
	}
	nodes := make(ZooKeeperNodes, len(processes))
	for i, p := range processes {
		t.Cleanup(p.Stop)
		nodes[i] = &ZooKeeperNode{t: t, process: p, links: links, index: i}
	}
	return nodes
}

// Addrs are the addresses of all nodes.
func (ns ZooKeeperNodes) Addrs() []string {
	addrs := make([]string, len(ns))
	for i, n := range ns {
		addrs[i] = n.Addr()
	}
	return addrs
}

// Leader returns the index of the node that leads, as soon as there is one. It passes over nodes
// that do not answer.
func (ns ZooKeeperNodes) Leader() (leader int) {
	ns[0].t.Helper()
	eventually(ns[0].t, "the ensemble has a leader", func() bool {
		for i, n := range ns {
			status, err := server.AskZooKeeper(context.Background(), n.Addr(), "srvr")
			if err == nil && strings.Contains(status, "Mode: leader") {
				leader = i
				return true
			}
		}
		return false
	})
	return leader
}
