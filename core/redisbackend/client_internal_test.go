package redisbackend

import (
	"errors"
	"io"
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
		c := &clientConn{options: ownOptions(client.Options())}
		if life := c.life(); life != followTime {
			t.Errorf("connections of master %s are used for %v, want %v", name, life, followTime)
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}
}

// What was answered before a pipeline broke off counts, although go-redis gives all its commands the
// error.
func TestConnection_AnswersBeforeABreak(t *testing.T) {
	t.Parallel()
	cn := &connection{wire: &wire{wrote: true}}
	answered, granted, broken := redis.NewCmd(t.Context()), redis.NewCmd(t.Context()), redis.NewCmd(t.Context())
	answered.SetVal("value")
	answered.SetErr(io.EOF)
	granted.SetErr(redis.Nil)
	broken.SetErr(io.EOF)
	silent := redis.NewCmd(t.Context())
	commands := []*command{{}, {}, {}, {}}
	err := cn.settle(commands, []redis.Cmder{answered, granted, broken, silent}, io.EOF)
	if !errors.Is(err, io.EOF) {
		t.Errorf("the connection's error is %v", err)
	}
	if c := commands[0]; c.Value != "value" || c.Err != nil {
		t.Errorf("a command that was answered: %v, %v", c.Value, c.Err)
	}
	if c := commands[1]; c.Value != nil || c.Err != nil {
		t.Errorf("a command with the reply nil: %v, %v", c.Value, c.Err)
	}
	for _, c := range commands[2:] {
		if !errors.Is(c.Err, io.EOF) {
			t.Errorf("a command without a reply: %v, %v", c.Value, c.Err)
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
