package redisbackend

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core/redisbackend/internal/driver"
)

// After the handshake a connection is the backend's alone. A command of go-redis between ours would
// shift their answers: the next SET would get the answer of another key.
func TestConnection_IsTheBackendsAlone(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	defer client.Close()
	cn, err := newConnection(t.Context(), ownOptions(client.Options()))
	if err != nil {
		t.Fatal(err)
	}
	defer cn.close()
	ping := driver.Plain("ping")
	if err := cn.exec([]*command{ping}, 0, time.Now().Add(5*time.Second), time.Time{}); err != nil || ping.Value != "PONG" {
		t.Fatalf("the backend's own PING: %v, %v", ping.Value, err)
	}
	if err := cn.client.Ping(t.Context()).Err(); err == nil {
		t.Error("go-redis sent a command on a connection that the backend uses")
	}
}

// A client that go-redis itself made for Sentinel: its connections are replaced after followTime.
// The other tests make such a client by hand, with the address that go-redis uses today.
func TestSentinel_ClientOfGoRedisIsRecognized(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a", "b"} {
		client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: name, SentinelAddrs: []string{name + ":26379"}})
		c := &clientConn{options: ownOptions(client.Options())}
		if life := c.life(); life != followTime {
			t.Errorf("connections of master %s are used for %v, want %v", name, life, followTime)
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}
}
