//go:build !race

package redisbackend

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
)

// CompareSimNode makes random calls on a Redis and on a simulated node. It returns the first
// difference, or "".
func CompareSimNode(t *testing.T, client *redis.Client, mutate func(*simNode)) string {
	l := newSimLua()
	for seed := range uint64(20) {
		if err := client.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		if diff := compareHistory(t, client, l, seed, mutate); diff != "" {
			return fmt.Sprintf("seed %d, %s", seed, diff)
		}
	}
	return ""
}

// SlowSimNode is a simulated node whose answers must be seen to differ.
func SlowSimNode(n *simNode) { clock := n.clock; n.clock = func() int64 { return clock() - 10e6 } }

func compareHistory(t *testing.T, client *redis.Client, l *simLua, seed uint64, mutate func(*simNode)) string {
	random := rand.New(rand.NewPCG(seed, 1))
	info, err := client.InfoMap(t.Context(), "server").Result()
	if err != nil {
		t.Fatal(err)
	}
	up, err := strconv.ParseInt(info["Server"]["uptime_in_seconds"], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	var clock int64
	node := &simNode{clock: func() int64 { return clock }, runID: info["Server"]["run_id"], data: make(map[string]simEntry)}
	node.started = (serverTime(t, client)/1e6 - up) * 1e6
	if mutate != nil {
		mutate(node)
	}
	for step := range 60 {
		s, r := randomCall(random, serverTime(t, client))
		args := make([]any, len(r.args))
		argv := scriptCommand(s, r.keys, r.args...).All()[3+len(r.keys):]
		for i, a := range argv {
			args[i] = a
		}
		clock = serverTime(t, client)
		real, err := client.Eval(t.Context(), s.Src, r.keys, args...).Result()
		if err != nil && err != redis.Nil {
			t.Fatal(err)
		}
		ours, err := l.run(node, s.Src, r.keys, argv)
		what := fmt.Sprintf("step %d: %s %q %q", step, scriptName(s), r.keys, argv)
		if err != nil || !alike(real, ours) {
			return fmt.Sprintf("%s: Redis answers %q, the simulated node %q, %v", what, real, ours, err)
		}
		for _, key := range r.keys[:min(len(r.keys), 2)] {
			text, err := client.Get(t.Context(), key).Result()
			e, held := node.get(key)
			if (err == nil) != held || text != e.text {
				return fmt.Sprintf("%s leaves %s %q in Redis, %q in the simulated node", what, key, text, e.text)
			}
			if left := client.PTTL(t.Context(), key).Val().Milliseconds(); held && !near(left, e.ends-clock/1000) {
				return fmt.Sprintf("%s leaves %s for %d ms in Redis, for %d ms in the simulated node", what, key, left, e.ends-clock/1000)
			}
		}
		if random.IntN(6) == 0 { // a lease or a promise ends
			gone := r.keys[random.IntN(min(len(r.keys), 2))]
			client.Del(t.Context(), gone)
			delete(node.data, gone)
		}
	}
	return ""
}

func serverTime(t *testing.T, client *redis.Client) int64 {
	now, err := client.Time(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	return now.UnixMicro()
}

// near allows for the time between two calls: what the calls ask for differs by minutes.
func near(a, b int64) bool { return max(a-b, b-a) < 20_000 }

// alike compares all but times, which may differ a little.
func alike(real, ours any) bool {
	a, isList := real.([]any)
	b, _ := ours.([]any)
	if !isList || len(a) != len(b) {
		return reflect.DeepEqual(real, ours)
	}
	for i := range a {
		x, isTime := a[i].(int64)
		y, _ := b[i].(int64)
		switch {
		case i > 0 && isTime:
			if !near(x, y) {
				return false
			}
		case i > 0 && (a[0] == int64(voteClock) || a[0] == int64(voteAbstains)): // µs, or ms by whole seconds
			x, _ := strconv.ParseInt(fmt.Sprint(a[i]), 10, 64)
			y, _ := strconv.ParseInt(fmt.Sprint(b[i]), 10, 64)
			if max(x-y, y-x) > 3_000_000 {
				return false
			}
		case !reflect.DeepEqual(a[i], b[i]):
			return false
		}
	}
	return true
}

func randomCall(random *rand.Rand, now int64) (*script, round) {
	q := &quorum{}
	one := func(of ...int64) int64 { return of[random.IntN(len(of))] }
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	key := fmt.Sprintf("{k%d}", random.IntN(2))
	owner := fmt.Sprint("o/", random.IntN(3))
	minutes := number(int64(1+random.IntN(9)) * 60_000)
	guard := pick("0", "0", "0", "-5000", "86400000") // the server runs for longer, or not for that long
	switch random.IntN(8) {
	case 0, 1, 2:
		at := number(now + one(0, 0, 1_500_000, -1_500_000, 60e6, -60e6))
		return quorumAcquireScript, q.round(key, quorumAcquireScript, owner, minutes, at, guard, pick("", "1"), "", "0")
	case 3, 4:
		t := number(now + one(1, 1_000_000, -1_000_000, 90e6))
		return quorumPromiseScript, q.round(key, quorumPromiseScript, owner, t)
	case 5, 6:
		return quorumExtendScript, q.round(key, quorumExtendScript, owner, minutes, pick("", "1"), guard)
	default:
		if random.IntN(2) == 0 {
			return quorumReadScript, q.round(key, quorumReadScript, "", guard)
		}
		return releaseScript, q.round(key, releaseScript, owner, pick("", "channel"), "message", "{w}", "")
	}
}
