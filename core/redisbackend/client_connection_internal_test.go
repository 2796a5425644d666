package redisbackend

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"

	"github.com/onelane/onelane/core/redisbackend/internal/driver"
)

// pipeOptions are those of a connection whose server is a test.
func pipeOptions() redis.Options {
	return redis.Options{Protocol: 2, DisableIdentity: true, ReadTimeout: goRedisNoDeadlines, WriteTimeout: goRedisNoDeadlines,
		MaxRetries: -1, PoolSize: 1, PipelinePoolSize: -1, DialerRetries: 1}
}

// answering returns a connection whose server answers the handshake, then each write with a reply, and leaves.
func answering(t *testing.T, replies ...string) *clientConnection {
	t.Helper()
	ours, theirs := net.Pipe()
	cn := newClientConnection(pipeOptions(), func(context.Context) (net.Conn, error) { return ours, nil }, time.Minute)
	go func() {
		b := make([]byte, 4096)
		for _, reply := range append([]string{"-ERR unknown command\r\n", "+PONG\r\n"}, replies...) {
			_, _ = theirs.Read(b)
			_, _ = theirs.Write([]byte(reply))
		}
		_ = theirs.Close()
	}()
	t.Cleanup(cn.Close)
	if err := cn.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	return cn
}

// go-redis panics on an answer of an impossible length. The call has an error, and the connection ends.
func TestConnection_ImpossibleLength(t *testing.T) {
	t.Parallel()
	for _, reply := range []string{"*9223372036854775807\r\n", "$9223372036854775807\r\n"} {
		cn, c := answering(t, reply), driver.Plain("get", "k")
		if err := cn.Exec([]*command{c}, time.Now().Add(time.Minute), time.Time{}); isIntact(err) || isIntact(c.Err) {
			t.Errorf("%q: the call's error is %v, the connection's %v", reply, c.Err, err)
		}
		if !cn.wire.closed.Load() {
			t.Errorf("%q: the connection is still open", reply)
		}
	}
}

// go-redis closes a connection after a READONLY. The backend goes on with it: a replica answers reads,
// and a new connection for each refusal would be a storm.
func TestConnection_StaysAfterReadOnly(t *testing.T) {
	t.Parallel()
	cn := answering(t, "-READONLY You can't write against a read only replica.\r\n", "+value\r\n")
	for _, want := range []string{"READONLY", ""} {
		c := driver.Plain("get", "k")
		if err := cn.Exec([]*command{c}, time.Now().Add(time.Minute), time.Time{}); err != nil {
			t.Errorf("the connection's error is %v", err)
		}
		if hasCode(c.Err, "READONLY") != (want != "") || c.Err == nil && c.Value != "value" {
			t.Errorf("the answer is %v, %v", c.Value, c.Err)
		}
	}
}

// Connect ends with its context, even in a handshake. The backend may be closed then, or the dial
// has taken most of the time.
func TestConnection_HandshakeEndsWithConnect(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	cn := newClientConnection(pipeOptions(), func(context.Context) (net.Conn, error) { return ours, nil }, 10*time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = theirs.Read(make([]byte, 4096)) // there is no answer
		cancel()
	}()
	if err := cn.Connect(ctx); !errors.Is(err, context.Canceled) || isTimeout(err) {
		t.Errorf("Connect went on: %v", err)
	}
	cn.Close()
}

// A Dialer returns neither a connection nor an error.
func TestConnection_DialerReturnsNothing(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, nil }})
	defer client.Close()
	node := newClientNode(client)
	c := newNodeConn(node, newLatency(time.Second), nil, 1)
	defer c.Close()
	if _, err := c.Do(t.Context(), driver.Plain("ping")); err == nil {
		t.Error("a call has no error")
	}
	if _, err := node.Listen(t.Context(), func(driver.Event) {}); err == nil {
		t.Error("listen has no error")
	}
}

// provider returns credentials, or nothing, and panics at the end.
type provider struct{ auth.Credentials }

func (p provider) Subscribe(auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	return p.Credentials, func() error { panic("a fault of the application") }, nil
}

func TestConnection_CredentialsPanic(t *testing.T) {
	t.Parallel()
	for _, p := range []provider{{}, {auth.NewBasicCredentials("user", "secret")}} {
		ours, theirs := net.Pipe()
		_ = theirs.Close()
		o := pipeOptions()
		o.StreamingCredentialsProvider = p
		careful(&o)
		cn := newClientConnection(o, func(context.Context) (net.Conn, error) { return ours, nil }, time.Minute)
		if err := cn.Connect(t.Context()); err == nil {
			t.Error("Connect has no error")
		}
		cn.Close()
	}
}
