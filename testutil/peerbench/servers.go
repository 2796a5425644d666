package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"regexp"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/testutil/internal/server"
)

const mastersCount = 5

// bench has the servers, each started when a scenario first needs it. Redis is always its own,
// since its commands are counted; the databases are those of testutil/servers where there are.
type bench struct {
	// short asks for small numbers: go test -bench.
	short bool
	// contender, if set, limits who runs.
	contender *regexp.Regexp

	mu        sync.Mutex
	single    *server.Server
	masters   []*server.Server
	since     time.Time // when the last of the masters was started
	started   []*server.Server
	databases map[database]*server.Server
	// etcdMembers and ensemble are an etcd and a ZooKeeper of three.
	etcdMembers, ensemble []*server.Server
	libraries             string // the folder of what servers load
}

func (b *bench) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.started {
		s.Stop()
	}
	b.started = nil
	if b.libraries != "" {
		_ = os.RemoveAll(b.libraries)
		b.libraries = ""
	}
}

func (b *bench) start(kind server.Kind, env []string, args ...string) (*server.Server, error) {
	s, err := server.StartWith(context.Background(), kind, env, args...)
	if err != nil {
		return nil, err
	}
	b.started = append(b.started, s)
	return s, nil
}

// redis is the address of the one Redis.
func (b *bench) redis() (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.single == nil {
		s, err := b.start(server.Redis, nil)
		if err != nil {
			return "", err
		}
		b.single = s
	}
	return b.single.Addr, nil
}

// quorum are five independent Redis masters that have their vote: they count their age, as in a
// service, and are older than they must be.
func (b *bench) quorum() ([]*server.Server, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.masters) < mastersCount {
		s, err := b.start(server.Redis, nil)
		if err != nil {
			return nil, err
		}
		b.masters, b.since = append(b.masters, s), time.Now()
	}
	if !b.short {
		time.Sleep(time.Until(b.since.Add(ttl*3/2 + 4*time.Second)))
	}
	return b.masters, nil
}

// database is the DSN of a MariaDB or PostgreSQL.
func (b *bench) database(d database) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	how := databases[d.kind]
	if dsn := os.Getenv(how.env); dsn != "" && !d.durable {
		return dsn, nil
	}
	if b.databases[d] == nil {
		var env, args []string
		if d.durable {
			args = how.durable
		}
		if d.slower > 0 {
			var err error
			if env, err = b.slowDisk(d.slower); err != nil {
				return "", err
			}
		}
		s, err := b.start(d.kind, env, args...)
		if err != nil {
			return "", err
		}
		if b.databases == nil {
			b.databases = make(map[database]*server.Server)
		}
		b.databases[d] = s
	}
	return b.databases[d].DSN, nil
}

// slowDisk is the environment of a server whose syncs each take so much longer.
func (b *bench) slowDisk(delay time.Duration) ([]string, error) {
	if b.libraries == "" {
		dir, err := os.MkdirTemp("", "onelane-disk-")
		if err != nil {
			return nil, err
		}
		b.libraries = dir
	}
	return slowDisk(b.libraries, delay)
}

// allCPU is the CPU time of this process, the Redis and a database in s. It is NaN if one is not
// known, as for a server that somebody else started.
func (b *bench) allCPU(d database) float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	total := processCPU()
	for _, s := range []*server.Server{b.single, b.databases[d]} {
		if s == nil {
			return math.NaN()
		}
		cpu, err := treeCPU(s.Pid())
		if err != nil {
			return math.NaN()
		}
		total += cpu.Seconds()
	}
	return total
}

// flush empties a Redis.
func flush(ctx context.Context, addr string) error {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	if err := client.FlushAll(ctx).Err(); err != nil {
		return fmt.Errorf("emptying the Redis: %w", err)
	}
	return nil
}
