package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-redsync/redsync/v4"
	redigopool "github.com/go-redsync/redsync/v4/redis/redigo"
	"github.com/gomodule/redigo/redis"
	goredis "github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
)

func ExampleNew() {
	server, err := miniredis.Run() // a Redis inside of this process
	if err != nil {
		panic(err)
	}
	defer server.Close()
	client := goredis.NewClient(&goredis.Options{Addr: server.Addr()})
	defer client.Close()

	locker, err := core.New(redisbackend.New(client))
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	lock, err := locker.Acquire(context.Background(), "stock:42")
	if err != nil {
		panic(err)
	}
	owner, err := client.Get(context.Background(), "onelane:{stock:42}").Result() // as redis-cli shows it
	fmt.Println(owner == lock.Owner(), err)
	// Output: true <nil>
}

// A quorum of three independent masters works while one is down.
func ExampleNew_quorum() {
	var clients []goredis.UniversalClient
	for i := range 3 {
		server, err := miniredis.Run()
		if err != nil {
			panic(err)
		}
		defer server.Close()
		client := goredis.NewClient(&goredis.Options{Addr: server.Addr()})
		defer client.Close()
		clients = append(clients, client)
		if i == 2 {
			server.Close()
		}
	}
	backend := redisbackend.New(clients...)
	backend.NewInstallation = true // these masters never held a lock

	backend.LongestTTL = 15 * time.Second // masters have their vote again after 24.5 s
	locker, err := core.New(backend)
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	err = locker.Do(context.Background(), "stock:42", func(context.Context) error {
		fmt.Println("two of three agree")
		return nil
	})
	fmt.Println(err)
	// Output:
	// two of three agree
	// <nil>
}

// Any redsync pool works; this one is redigo.
func ExamplePools() {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	pool := &redis.Pool{Dial: func() (redis.Conn, error) { return redis.Dial("tcp", server.Addr()) }}
	defer pool.Close()

	locker, err := core.New(redisbackend.Pools(redigopool.NewPool(pool)))
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	lock, err := locker.Acquire(context.Background(), "stock:42")
	if err != nil {
		panic(err)
	}
	fmt.Println(lock.Release(context.Background()))
	// Output: <nil>
}

// Without a prefix, a service on onelane and one that still uses redsync exclude each other.
func ExamplePools_redsync() {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	redigo := &redis.Pool{Dial: func() (redis.Conn, error) { return redis.Dial("tcp", server.Addr()) }}
	defer redigo.Close()
	pool := redigopool.NewPool(redigo)

	mutex := redsync.New(pool).NewMutex("stock:42")
	if err := mutex.Lock(); err != nil {
		panic(err)
	}
	locker, err := core.New(redisbackend.Pools(pool), core.WithPrefix(""))
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	_, err = locker.TryAcquire(context.Background(), "stock:42")
	fmt.Println(errors.Is(err, core.ErrTaken))
	// Output: true
}
