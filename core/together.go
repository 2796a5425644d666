package core

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/redis/go-redis/v9"
)

// together says whether the calls of many callers for one verb may go as one script. What answers as one Redis may be a proxy that
// gives each call to the master of its first key (twemproxy, Envoy): there, a script would lock the other keys on the wrong master, and
// nobody would notice. So a script is first asked to read locks that were taken one by one: it may lock many when it sees all of them.
type together struct {
	state atomic.Int32
	tries int // of whom has made it learning
}

const (
	notKnown int32 = iota
	learning
	works
	worksNot
)

const (
	enoughLocks = 16 // that a proxy over two masters has them all on one has a chance of 1 in 30,000
	mostTries   = 5
)

// seen reads keys.
var seen = redsyncredis.NewScript(-1, `
local values = {}
for i, key in ipairs(KEYS) do
  values[i] = redis.call('GET', key)
end
return values
`, "")

// learn finds out, from a batch that was answered and whose callers do not know it yet: they still hold their locks.
func (t *together) learn(ctx context.Context, client redis.UniversalClient, calls []*scriptCall) {
	if t.state.Load() != notKnown {
		return
	}
	var keys []string
	var owners []any
	for _, c := range calls {
		if c.held() && !slices.Contains(keys, c.keys[0]) {
			keys, owners = append(keys, c.keys[0]), append(owners, c.args[0])
		}
	}
	if len(keys) < enoughLocks || !t.state.CompareAndSwap(notKnown, learning) {
		return
	}
	values, err := client.Eval(ctx, seen.Src, keys).Slice()
	switch t.tries++; {
	case err == nil && slices.Equal(values, owners):
		t.state.Store(works)
	case t.tries == mostTries || redis.HasErrorPrefix(err, "CROSSSLOT"):
		t.state.Store(worksNot)
	default:
		t.state.Store(notKnown)
	}
}

// held says that the call has just taken or extended a lock.
func (c *scriptCall) held() bool {
	if c.err != nil || c.script != acquireScript && c.script != quorumAcquireScript && c.script != extendScript {
		return false
	}
	var r reply
	return r.decode(c.v) == nil && r.status == 1
}

// together is what goes as one script.
type group []*scriptCall

// groups puts calls of the same script together.
func (t *together) groups(calls []*scriptCall) []group {
	groups := make([]group, 0, len(calls))
	if t.state.Load() != works {
		for i := range calls {
			groups = append(groups, calls[i:i+1])
		}
		return groups
	}
	open := make(map[*script]int, 2) // the group that has room
	for i, c := range calls {
		at, ok := open[c.script]
		switch {
		case c.alone:
			groups = append(groups, calls[i:i+1])
		case !ok || len(groups[at]) == largestCall:
			open[c.script] = len(groups)
			groups = append(groups, group{c})
		default:
			groups[at] = append(groups[at], c)
		}
	}
	return groups
}

func (g group) cmd(ctx context.Context) *redis.Cmd {
	s := g[0].script.Script
	if len(g) > 1 {
		s = g[0].script.many
	}
	verb, name := "evalsha", s.Hash
	if g[0].source {
		verb, name = "eval", s.Src
	}
	keys, args := len(g)*len(g[0].keys), len(g)*len(g[0].args)
	all := append(make([]any, 0, 3+keys+args), verb, name, keys)
	for _, c := range g {
		for _, k := range c.keys {
			all = append(all, k)
		}
	}
	for _, c := range g {
		all = append(all, c.args...)
	}
	return redis.NewCmd(ctx, all...)
}

// refused says that Redis has done nothing, and would if asked in another way. It notes which.
func (g group) refused(err error) bool {
	switch unknown := redis.HasErrorPrefix(err, "NOSCRIPT"); {
	case err == nil:
		return false
	case unknown && !g[0].source:
		for _, c := range g {
			c.source = true
		}
		return true
	case len(g) > 1 && refused(err): // one key of many may be to blame
		for _, c := range g {
			c.alone, c.source = true, false
		}
		return true
	default:
		return false
	}
}

func (g group) answer(v any, err error) {
	if len(g) == 1 || err != nil {
		for _, c := range g {
			c.v, c.err = v, err
		}
		return
	}
	answers, ok := v.([]any)
	if !ok || len(answers) != len(g) {
		err = fmt.Errorf("core: a script for %d locks answered %T", len(g), v)
	}
	for i, c := range g {
		if err != nil {
			c.err = err
			continue
		}
		c.v = answers[i]
		var r reply
		if r.decode(c.v) == nil && r.status == 0 {
			c.v, c.err = nil, scriptError(r.text(1))
		}
	}
}

// scriptError is the server's answer for one lock of a script for many.
type scriptError string

func (e scriptError) Error() string { return string(e) }

// RedisError makes it a redis.Error.
func (scriptError) RedisError() {}
