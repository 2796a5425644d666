package testutil

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/onelane/onelane/testutil/internal/server"
)

// EtcdMember is an etcd process of one test. Its methods fail the test it was made for.
type EtcdMember struct {
	t       testing.TB
	process *server.Server
	links   *etcdLinks // nil for a member without peers
	index   int
}

// Etcd starts an empty etcd of one member on a free loopback port and ends it with the test. The
// args are added to its command line. It needs etcd. If etcd is not installed, Etcd returns nil and
// logs it, or fails the test when CI or ONELANE_REQUIRE_SERVERS is set.
//
//	etcd := testutil.Etcd(t)
//	if etcd == nil {
//		return
//	}
//	locker, err := core.New(etcdbackend.New(etcd.Client()))
//	if err != nil {
//		t.Fatal(err)
//	}
//	defer locker.Close()
//	if _, err := locker.Acquire(t.Context(), "stock:42"); err != nil {
//		t.Error(err)
//	}
func Etcd(t testing.TB, args ...string) *EtcdMember {
	t.Helper()
	if !hasEtcd(t) {
		return nil
	}
	process, err := server.StartEtcd(context.Background(), args...)
	if err != nil {
		t.Fatalf("testutil: %v", err)
	}
	t.Cleanup(process.Stop)
	return &EtcdMember{t: t, process: process}
}

func hasEtcd(t testing.TB) bool {
	t.Helper()
	_, err := server.Find(server.Etcd)
	if err != nil && server.Required() {
		t.Fatalf("testutil: %v; %s", err, server.Advice)
	}
	if err != nil {
		missing(t, "etcd", "these tests run without etcd", err)
	}
	return err == nil
}

// Addr is the member's address for clients, host:port.
func (m *EtcdMember) Addr() string { return m.process.Addr }

// Client returns a new client of this member alone, closed at the end of the test.
func (m *EtcdMember) Client() *clientv3.Client {
	m.t.Helper()
	return etcdClient(m.t, m.Addr())
}

// Kill ends the process with SIGKILL and returns when it is gone.
func (m *EtcdMember) Kill() { m.process.Kill() }

// Stop stops the process with SIGSTOP: connections stay open and nothing answers until Cont.
func (m *EtcdMember) Stop() {
	m.t.Helper()
	m.must(m.process.Pause())
}

// Cont lets a stopped process go on, with SIGCONT.
func (m *EtcdMember) Cont() {
	m.t.Helper()
	m.must(m.process.Resume())
}

// Restart starts the process anew on the same port with the data it had, killing it first if it
// still runs. It returns when the member has a leader.
func (m *EtcdMember) Restart() {
	m.t.Helper()
	m.must(m.process.Restart(context.Background()))
}

// Isolate cuts the member off from the others. Its clients still reach it. It needs EtcdCluster.
func (m *EtcdMember) Isolate() {
	m.t.Helper()
	if m.links == nil {
		m.t.Fatal("testutil: EtcdMember.Isolate: it has no peers; use EtcdCluster")
	}
	m.links.isolate(m.index, true)
}

// Rejoin ends Isolate.
func (m *EtcdMember) Rejoin() { m.links.isolate(m.index, false) }

func (m *EtcdMember) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatalf("testutil: %v", err)
	}
}

// EtcdMembers are the members of one etcd.
type EtcdMembers []*EtcdMember

// EtcdCluster starts an etcd of three members and ends it with the test. They elect a leader within
// half a second. If etcd is not installed, EtcdCluster does the same as [Etcd].
//
//	etcd := testutil.EtcdCluster(t)
//	if etcd == nil {
//		return
//	}
//	locker, err := core.New(etcdbackend.New(etcd.Client()))
//	if err != nil {
//		t.Fatal(err)
//	}
//	defer locker.Close()
//	etcd.Leader().Kill() // the two others elect one
//	if _, err := locker.Acquire(t.Context(), "stock:42", core.WithOutageWait(time.Minute)); err != nil {
//		t.Error(err)
//	}
func EtcdCluster(t testing.TB, args ...string) EtcdMembers {
	t.Helper()
	if !hasEtcd(t) {
		return nil
	}
	const n = 3
	links := newEtcdLinks(t, n)
	processes, err := server.StartEtcdCluster(context.Background(), n, links.advertise,
		append([]string{"--heartbeat-interval", "50", "--election-timeout", "500"}, args...)...)
	if err != nil {
		t.Fatalf("testutil: %v", err)
	}
	members := make(EtcdMembers, n)
	for i, process := range processes {
		t.Cleanup(process.Stop)
		members[i] = &EtcdMember{t: t, process: process, links: links, index: i}
	}
	links.learn(members)
	return members
}

// Client returns a new client of all members, closed at the end of the test.
func (ms EtcdMembers) Client() *clientv3.Client {
	var addrs []string
	for _, m := range ms {
		addrs = append(addrs, m.Addr())
	}
	return etcdClient(ms[0].t, addrs...)
}

// Leader waits until one member leads the others, and returns it. It asks members that run.
func (ms EtcdMembers) Leader() (leader *EtcdMember) {
	t := ms[0].t
	t.Helper()
	eventually(t, "etcd has a leader", func() bool {
		for _, m := range ms {
			if status, err := m.status(); err == nil && status.Leader != 0 && status.Leader == status.Header.MemberId {
				leader = m
				return true
			}
		}
		return false
	})
	return leader
}

func (m *EtcdMember) status() (*clientv3.StatusResponse, error) {
	client := m.Client()
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return client.Status(ctx, m.Addr())
}

// etcdClient leaves a member that hangs after 11 s: gRPC asks it every 10 s, not more often.
func etcdClient(t testing.TB, addrs ...string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: addrs, Logger: zap.NewNop(),
		DialTimeout: 5 * time.Second, DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: time.Second,
	})
	if err != nil {
		t.Fatalf("testutil: %v", err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("testutil: %v", fmt.Errorf("closing a client of etcd: %w", err))
		}
	})
	return client
}
