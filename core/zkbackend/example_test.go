package zkbackend_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/zkbackend"
)

// An ensemble of three servers works while one is down.
func ExampleNew() {
	locker, err := core.New(zkbackend.New([]string{"zk1:2181", "zk2:2181", "zk3:2181"}))
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	lock, err := locker.Acquire(context.Background(), "stock:42")
	if err != nil {
		panic(err)
	}
	defer lock.Release(context.Background())
	fmt.Println(lock.Key())
}

// Locks on an ensemble that other programs use, too, over TLS.
func ExampleNew_options() {
	dial := func(network, addr string, timeout time.Duration) (net.Conn, error) {
		return tls.DialWithDialer(&net.Dialer{Timeout: timeout}, network, addr, &tls.Config{MinVersion: tls.VersionTLS13})
	}
	locker, err := core.New(zkbackend.New([]string{"zk1:2281", "zk2:2281", "zk3:2281"},
		zkbackend.WithRoot("/shop/locks"),
		zkbackend.WithAuth("digest", "shop:secret"),
		zkbackend.WithTimeout(2*time.Second),
		zkbackend.WithDialer(dial)))
	if err != nil {
		panic(err)
	}
	defer locker.Close()
}
