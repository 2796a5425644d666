package redisbackend

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core/redisbackend/internal/driver"
)

// A client that go-redis itself made for Sentinel: its connections are replaced after followTime.
// The other tests make such a client by hand, with the address that go-redis uses today.
func TestSentinel_ClientOfGoRedisIsRecognized(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a", "b"} {
		client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: name, SentinelAddrs: []string{name + ":26379"}})
		if life := lifeOf(newClientNode(client)); life != followTime {
			t.Errorf("connections of master %s are used for %v, want %v", name, life, followTime)
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A lifetime is spread by the jitter on both sides, as go-redis does it, and has no end without one.
func TestClientNode_Lifetimes(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, c := range []struct{ lifetime, jitter, least, most time.Duration }{
		{200 * ms, 50 * ms, 150 * ms, 250 * ms},
		{200 * ms, 300 * ms, 0, 400 * ms}, // no more jitter than lifetime
		{200 * ms, 0, 200 * ms, 200 * ms},
		{200 * ms, -50 * ms, 200 * ms, 200 * ms},
		{0, 50 * ms, 0, 0},
		{-ms, 50 * ms, 0, 0},
	} {
		client := redis.NewClient(&redis.Options{ConnMaxLifetime: c.lifetime, ConnMaxLifetimeJitter: c.jitter})
		node := newClientNode(client)
		least, most := lifeOf(node), lifeOf(node)
		for range 1000 {
			life := lifeOf(node)
			least, most = min(least, life), max(most, life)
		}
		if least < c.least || most > c.most || least > c.least+c.least/10+20*ms && c.least != c.most || most < c.most-c.most/10 {
			t.Errorf("lifetime %v and jitter %v: connections are used for %v to %v, want %v to %v", c.lifetime, c.jitter, least, most, c.least, c.most)
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}
}

// What was answered before a pipeline broke off counts, although go-redis gives all its commands the
// error. A part of an answer does not count.
func TestConnection_AnswersBeforeABreak(t *testing.T) {
	t.Parallel()
	for reply, answered := range map[string]int{
		"":                      0,
		"*2\r\n:1\r\n":          0,
		"*2\r\n:1\r\n$5\r\nval": 0,
		"*2\r\n:1\r\n:2\r\n":    1,
		// go-redis goes on with the rest of the array: the next command would be granted.
		"*2\r\n-NOPERM x\r\n$-1\r\n+HELD\r\n":              0,
		"*2\r\n:1\r\n:2\r\n$-1\r":                          1,
		"*2\r\n:1\r\n:2\r\n$-1\r\n":                        2,
		"*2\r\n:1\r\n:2\r\n$-1\r\n-ERR wrong\r\n$5\r\nval": 3,
	} {
		cn := answering(t, reply)
		commands := []*command{driver.Plain("a"), driver.Plain("b"), driver.Plain("c"), driver.Plain("d")}
		err := cn.Exec(commands, time.Now().Add(time.Minute), time.Time{})
		if isIntact(err) {
			t.Errorf("%q: the connection's error is %v", reply, err)
		}
		for i, c := range commands {
			if isIntact(c.Err) != (i < answered) || c.Err != nil && c.Value != nil {
				t.Errorf("%q: command %d has the value %v and the error %v", reply, i, c.Value, c.Err)
			}
		}
		if c := commands[0]; answered > 0 && fmt.Sprint(c.Value) != "[1 2]" {
			t.Errorf("%q: the first reply is %v", reply, c.Value)
		}
	}
}

// A message that names another waiter is a signal a little later.
func TestWakes_NamedWaiterFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, c, changed := newWakes(nil, "me", false), newChannel(), make(chan struct{}, 1)
		w.channels["free"] = c
		c.watchers[&watcher{changed: changed, told: true}] = true
		for message, after := range map[string]time.Duration{
			"": 0, "other": 0, "other me 3000": 0, "other third 3000": firstAlone, "other meme 3000": firstAlone, "me": -1, "me third 3000": -1,
		} {
			w.heard(driver.Event{Kind: "message", Channel: "free", Payload: message})
			begin, came := time.Now(), time.Duration(-1)
			select {
			case <-changed:
				came = time.Since(begin)
			case <-time.After(time.Second):
			}
			if came != after {
				t.Errorf("message %q: a signal after %v, want %v", message, came, after)
			}
		}
	})
}
