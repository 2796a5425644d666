package main

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/onelane/onelane/core/sqlbackend"
	"github.com/onelane/onelane/testutil/internal/server"
)

// A topology is how the servers of a library are arranged.
type topology string

const (
	oneRedis     topology = "one Redis"
	threeRedis   topology = "three Redis masters"
	oneEtcd      topology = "etcd"
	oneZooKeeper topology = "ZooKeeper"
	onePostgres  topology = "PostgreSQL"
)

// A site is the servers of a trial.
type site struct {
	servers []*server.Server
	replica *server.Server // of one Redis, if there is to be a fail-over
	clock   string         // the file with the step of the first server's clock
	shared  bool
}

// addrs returns the addresses of a worker's links, or DSNs with them.
func (s *site) addrs(links []*link) []string {
	addrs := make([]string, len(links))
	for i, l := range links {
		addrs[i] = l.addr()
		if s.servers[i].DSN != "" {
			addrs[i] = strings.Replace(s.servers[i].DSN, s.servers[i].Addr, l.addr(), 1)
		}
	}
	return addrs
}

func (s *site) close() {
	for _, srv := range s.servers {
		srv.Stop()
	}
	if s.replica != nil {
		s.replica.Stop()
	}
}

// A pool starts servers. Trials in which no server suffers share those that start slowly.
type pool struct {
	dir   string        // for the library that steps clocks
	grace time.Duration // after which a key is stuck

	// mu guards the shared sites.
	mu     sync.Mutex
	shared map[topology]*site
}

func (p *pool) close() {
	for _, s := range p.shared {
		s.close()
	}
	_ = os.RemoveAll(p.dir)
}

// site returns servers for a trial. The caller closes those that are not shared.
func (p *pool) site(ctx context.Context, t topology, f fault) (*site, error) {
	if t == oneRedis || t == threeRedis || f.atServers {
		s := &site{}
		if err := p.start(ctx, s, t, f); err != nil {
			s.close()
			return nil, err
		}
		return s, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shared[t] == nil {
		s := &site{shared: true}
		if err := p.start(ctx, s, t, f); err != nil {
			s.close()
			return nil, err
		}
		p.shared[t] = s
	}
	return p.shared[t], nil
}

func (p *pool) start(ctx context.Context, s *site, t topology, f fault) (err error) {
	kind, n := server.Redis, 1
	switch t {
	case threeRedis:
		n = 3
	case oneEtcd:
		kind = server.Etcd
	case oneZooKeeper:
		kind = server.ZooKeeper
	case onePostgres:
		kind = server.Postgres
	}
	switch {
	case f.name == "fail-over" && t == oneEtcd:
		s.servers, err = server.StartEtcdCluster(ctx, 3, func(_ int, listen string) string { return "http://" + listen })
		return err
	case f.name == "fail-over" && t == oneZooKeeper:
		s.servers, err = server.StartEnsemble(ctx, 3, server.Direct)
		return err
	}
	for i := range n {
		var env []string
		if f.name == "clock" && i == 0 {
			if s.clock, env, err = p.steppableClock(); err != nil {
				return err
			}
		}
		srv, err := server.StartWith(ctx, kind, env)
		if err != nil {
			return err
		}
		s.servers = append(s.servers, srv)
	}
	switch {
	case t == onePostgres:
		db, err := sql.Open("pgx", s.servers[0].DSN)
		if err != nil {
			return err
		}
		defer db.Close()
		return sqlbackend.Migrate(ctx, db)
	case f.name == "fail-over":
		return s.startReplica(ctx)
	}
	return nil
}

// startReplica starts a replica of the one Redis, and returns when it has the master's data.
func (s *site) startReplica(ctx context.Context) (err error) {
	if s.replica, err = server.StartRedis(ctx); err != nil {
		return err
	}
	host, port, _ := strings.Cut(s.servers[0].Addr, ":")
	client := redis.NewClient(&redis.Options{Addr: s.replica.Addr})
	defer client.Close()
	if err := client.Do(ctx, "REPLICAOF", host, port).Err(); err != nil {
		return err
	}
	for {
		info, err := client.Info(ctx, "replication").Result()
		if err != nil || strings.Contains(info, "master_link_status:up") {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// cutReplica ends the replication. The replica keeps what it has, and takes writes.
func (s *site) cutReplica(ctx context.Context) error {
	client := redis.NewClient(&redis.Options{Addr: s.replica.Addr})
	defer client.Close()
	return client.Do(ctx, "REPLICAOF", "NO", "ONE").Err()
}

// leader returns the member that leads the others.
func (s *site) leader(ctx context.Context, t topology) (*server.Server, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if t == oneZooKeeper {
		for _, srv := range s.servers {
			if answer, err := server.AskZooKeeper(ctx, srv.Addr, "srvr"); err == nil && strings.Contains(answer, "Mode: leader") {
				return srv, nil
			}
		}
		return nil, errors.New("no server leads the ensemble")
	}
	client, err := etcdClient([]string{s.servers[0].Addr})
	if err != nil {
		return nil, err
	}
	defer client.Close()
	leads := func(srv *server.Server) bool {
		var status *clientv3.StatusResponse
		status, err = client.Status(ctx, srv.Addr)
		return err == nil && status.Leader == status.Header.MemberId
	}
	if i := slices.IndexFunc(s.servers, leads); i >= 0 {
		return s.servers[i], nil
	}
	return nil, errors.Join(errors.New("no member leads the etcd"), err)
}

// stepC is a library that a server loads before all others. It adds the seconds that it reads in a
// file to the clock that can be set. The monotonic clock stays as it is.
const stepC = `
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *step;

__attribute__((constructor)) static void load(void) {
	int file = open(getenv("TORTURE_CLOCK"), O_RDONLY);
	void *page = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
	if (file < 0 || page == MAP_FAILED) abort();
	step = page;
}

int clock_gettime(clockid_t clock, struct timespec *t) {
	int status = syscall(SYS_clock_gettime, clock, t);
	if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) t->tv_sec += *step;
	return status;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
	struct timespec now;
	int status = clock_gettime(CLOCK_REALTIME, &now);
	t->tv_sec = now.tv_sec;
	t->tv_usec = now.tv_nsec / 1000;
	return status;
}

time_t time(time_t *t) {
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	if (t) *t = now.tv_sec;
	return now.tv_sec;
}
`

// steppableClock returns the file that steps a server's clock, and the server's environment.
func (p *pool) steppableClock() (file string, env []string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	library := filepath.Join(p.dir, "step.so")
	if _, err := os.Stat(library); err != nil {
		cmd := exec.Command(cmp.Or(os.Getenv("CC"), "cc"), "-shared", "-fPIC", "-O1", "-o", library, "-x", "c", "-")
		cmd.Stdin = strings.NewReader(stepC)
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", nil, fmt.Errorf("compiling the library that steps clocks (it needs cc, or CC in the environment): %w: %s", err, out)
		}
	}
	f, err := os.CreateTemp(p.dir, "clock-")
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, 8)); err != nil {
		return "", nil, err
	}
	// A database runs as a separate user.
	err = errors.Join(os.Chmod(p.dir, 0o755), os.Chmod(library, 0o755), os.Chmod(f.Name(), 0o644))
	return f.Name(), []string{"LD_PRELOAD=" + library, "TORTURE_CLOCK=" + f.Name()}, err
}

// stepClock steps the clock of the first server forward.
func (s *site) stepClock(d time.Duration) error {
	f, err := os.OpenFile(s.clock, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write(binary.NativeEndian.AppendUint64(nil, uint64(d/time.Second)))
	return err
}
