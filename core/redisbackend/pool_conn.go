package redisbackend

import (
	"context"
	"errors"
	"sync/atomic"

	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/redis/go-redis/v9"
)

// maxStuck is how many calls of one Redis may be given up without having returned.
const maxStuck = 64

var errStuck = errors.New("redisbackend: too many earlier calls have not returned; set time-outs on the connections of the pool")

// poolConn is a redsync pool. It may ignore contexts.
type poolConn struct {
	pool  redsyncredis.Pool
	name  string // its place among Config.Pools: a pool does not tell its address
	stuck atomic.Int64
}

func (c *poolConn) Do(ctx context.Context, commands ...*command) (<-chan struct{}, error) {
	cmd := commands[0]
	if cmd.Script == nil {
		return nil, notSent(errors.New("redisbackend: a pool runs scripts only"))
	}
	script, keys, args := cmd.Script, cmd.Keys, cmd.Args // a call that is given up goes on with them
	v, late, err := giveUp(ctx, &c.stuck, func() (v any, err error) {
		conn, err := c.pool.Get(ctx)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, conn.Close()) }()
		all := make([]any, 0, len(keys)+len(args))
		for _, k := range keys {
			all = append(all, k)
		}
		for _, a := range args {
			all = append(all, a)
		}
		return conn.Eval(script, all...)
	})
	cmd.Value, cmd.Err = v, err
	return late, err
}

func (c *poolConn) Address() string { return c.name }
func (c *poolConn) Close() error    { return nil }

// askConn asks the master that a slot of a Redis Cluster is moving to, through the cluster's
// client.
type askConn struct {
	cluster *redis.ClusterClient
	stuck   atomic.Int64
}

// onceCmd is a command that the client does not send again by itself. Redirects are followed.
type onceCmd struct{ *redis.Cmd }

func (onceCmd) NoRetry() bool { return true }

func (c *askConn) Do(ctx context.Context, commands ...*command) (<-chan struct{}, error) {
	// A call that is given up goes on with copies.
	all, replies := make([][]any, len(commands)), make([]*redis.Cmd, len(commands))
	for i, cmd := range commands {
		for _, w := range cmd.All() {
			all[i] = append(all[i], w)
		}
	}
	_, late, err := giveUp(ctx, &c.stuck, func() (any, error) {
		for i, words := range all {
			cmd := redis.NewCmd(ctx, words...)
			_ = c.cluster.Process(ctx, onceCmd{cmd}) // cmd has the error
			replies[i] = cmd
		}
		return nil, nil
	})
	if err != nil {
		return late, err
	}
	for i, cmd := range commands {
		if cmd.Value, cmd.Err = replies[i].Result(); errors.Is(cmd.Err, redis.Nil) {
			cmd.Err = nil
		}
	}
	return nil, commands[0].Err
}

func (c *askConn) Address() string { return "cluster" }
func (c *askConn) Close() error    { return nil }

// giveUp runs a call that may ignore ctx, and returns without it when ctx ends.
func giveUp(ctx context.Context, stuck *atomic.Int64, call func() (any, error)) (any, <-chan struct{}, error) {
	if err := contextError(ctx); err != nil {
		return nil, nil, notSent(err) // a quick answer could come before the end is seen
	}
	if stuck.Load() >= maxStuck {
		return nil, nil, notSent(errStuck)
	}
	type result struct {
		v   any
		err error
	}
	results, returned := make(chan result, 1), make(chan struct{})
	go func() {
		v, err := call()
		results <- result{v, err}
		close(returned)
	}()
	select {
	case r := <-results:
		return r.v, nil, r.err
	case <-ctx.Done():
		stuck.Add(1)
		go func() {
			<-returned
			stuck.Add(-1)
		}()
		return nil, returned, ctx.Err()
	}
}
