package etcdbackend_test

import (
	"context"
	"log"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/etcdbackend"
)

func ExampleNew() {
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            []string{"etcd-1:2379", "etcd-2:2379", "etcd-3:2379"},
		DialTimeout:          5 * time.Second,
		DialKeepAliveTime:    10 * time.Second,
		DialKeepAliveTimeout: 3 * time.Second,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	locker, err := core.New(etcdbackend.New(client))
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	err = locker.Do(context.Background(), "stock:42", func(ctx context.Context) error {
		return nil // ctx ends if the lock is lost
	})
	if err != nil {
		log.Print(err)
	}
}
