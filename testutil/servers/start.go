package main

import (
	"context"
	"errors"
	"sync"

	"github.com/onelane/onelane/testutil/internal/server"
)

// start starts one server of each kind, all at once. It returns all of them, in the order of the
// kinds, or an error and none.
func start(ctx context.Context, kinds []server.Kind) ([]*server.Server, error) {
	servers := make([]*server.Server, len(kinds))
	errs := make([]error, len(kinds))
	var all sync.WaitGroup
	for i, kind := range kinds {
		all.Go(func() { servers[i], errs[i] = server.Start(ctx, kind) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		stop(servers)
		return nil, err
	}
	return servers, nil
}

func stop(servers []*server.Server) {
	var all sync.WaitGroup
	for _, s := range servers {
		if s != nil {
			all.Go(s.Stop)
		}
	}
	all.Wait()
}

// environment returns the variables that name the servers to COMMAND.
func environment(kinds []server.Kind, servers []*server.Server) map[string]string {
	env := map[string]string{server.EnvRequire: ""} // -only leaves some out on purpose
	if len(kinds) == len(server.Kinds) {
		env[server.EnvRequire] = "1"
	}
	for i, kind := range kinds {
		switch kind {
		case server.Redis:
			env[server.EnvRedis] = servers[i].Addr
			if path, err := server.Find(server.Redis); err == nil {
				env[server.EnvRedisServer] = path
			}
		case server.MySQL:
			env[server.EnvMySQL] = servers[i].DSN
		case server.Postgres:
			env[server.EnvPostgres] = servers[i].DSN
		case server.Etcd:
			env[server.EnvEtcd] = servers[i].Addr
		case server.ZooKeeper:
			env[server.EnvZooKeeper] = servers[i].Addr
		}
	}
	return env
}
