package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/testutil/internal/server"
)

const mastersCount = 5

// bench has the servers, each started when a scenario first needs it. Redis is always its own, since its commands are
// counted; the databases are those of testutil/servers where there are.
type bench struct {
	// short asks for small numbers: go test -bench.
	short bool
	// contender, if set, limits who is asked.
	contender *regexp.Regexp

	mu        sync.Mutex
	single    *server.Server
	masters   []*server.Server
	since     time.Time // when the last of the masters was started
	started   []*server.Server
	databases map[server.Kind]*server.Server
}

func (b *bench) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.started {
		s.Stop()
	}
	b.started = nil
}

func (b *bench) start(kind server.Kind) (*server.Server, error) {
	s, err := server.Start(context.Background(), kind)
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
		s, err := b.start(server.Redis)
		if err != nil {
			return "", err
		}
		b.single = s
	}
	return b.single.Addr, nil
}

// quorum are five independent Redis masters, that have run for longer than a TTL: before that each is asked whether it forgot.
func (b *bench) quorum() ([]*server.Server, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.masters) < mastersCount {
		s, err := b.start(server.Redis)
		if err != nil {
			return nil, err
		}
		b.masters, b.since = append(b.masters, s), time.Now()
	}
	if !b.short {
		time.Sleep(time.Until(b.since.Add(ttl + 3*time.Second)))
	}
	return b.masters, nil
}

// database is the DSN of a MariaDB or PostgreSQL.
func (b *bench) database(kind server.Kind) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if dsn := os.Getenv(map[server.Kind]string{server.MySQL: server.EnvMySQL, server.Postgres: server.EnvPostgres}[kind]); dsn != "" {
		return dsn, nil
	}
	if b.databases[kind] == nil {
		s, err := b.start(kind)
		if err != nil {
			return "", err
		}
		if b.databases == nil {
			b.databases = make(map[server.Kind]*server.Server)
		}
		b.databases[kind] = s
	}
	return b.databases[kind].DSN, nil
}

// allCPU is the CPU time of this process, the Redis and a database, 0 where that is not known.
func (b *bench) allCPU(database server.Kind) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	total := processCPU()
	for _, s := range []*server.Server{b.single, b.databases[database]} {
		if s == nil {
			return 0
		}
		cpu, err := treeCPU(s.Pid())
		if err != nil {
			return 0
		}
		total += cpu
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
