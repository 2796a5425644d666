package redisbackend

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend/internal/driver"
)

// replyError is an error that the server answers.
type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

// refusing is a node that lost the lease and answers an error to the request that takes it again.
type refusing struct {
	scripted
	err   error
	again atomic.Int64
}

func (n *refusing) Do(ctx context.Context, commands ...*command) (<-chan struct{}, error) {
	switch phase(commands[0]) {
	case "again":
		n.again.Add(1)
		return nil, n.err
	case "extend":
		commands[0].Value = []any{int64(voteFree)}
		return nil, nil
	}
	return n.scripted.Do(ctx, commands...)
}

var _ driver.Conn = (*refusing)(nil)

// Callers do not ask a node that answers an error to "again" in a tight loop until the lease ends
// (rule 8).
func TestQuorum_AgainIsRefused(t *testing.T) {
	for _, text := range []string{
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
		"ERR Error running script (call to f_1): @user_script:30: -OOM command not allowed when used memory > 'maxmemory'.", // Redis 6
		"ERR ACL failure in script: User u has no permissions to run the 'set' command",                                     // Redis 7
		"ERR max number of clients reached",
	} {
		env := core.Environment{TTL: time.Second, Logger: slog.New(slog.DiscardHandler), Meter: noop.NewMeterProvider().Meter("")}
		var nodes []*node
		bad := &refusing{err: replyError(text)}
		for i := range 3 {
			var conn driver.Conn = &scripted{name: fmt.Sprint("node", i), steps: map[*script][]step{quorumAcquireScript: {granted(7)}}}
			if i == 2 {
				bad.scripted = scripted{name: "node2", steps: map[*script][]step{quorumAcquireScript: {granted(7)}}}
				conn = bad
			}
			nodes = append(nodes, newNode(conn, newLatency(5*time.Second), env))
		}
		q := newQuorum(nodes, env, 30*time.Second, true)
		r := phaseRequest()
		r.TTL = 2 * time.Second
		g, err := q.Acquire(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := q.Extend(context.Background(), g, r.TTL); err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond)
		if n := bad.again.Load(); n > 50 {
			t.Errorf("%.20q: asked %d times in half a second", text, n)
		}
		_, _ = q.Release(context.Background(), g)
		_ = q.Close()
	}
}
