package redisbackend

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// CompareSimNode runs long random histories of a few keys and owners on a Redis and on a simulated
// node. It returns the first difference, or "".
func CompareSimNode(t *testing.T, client *redis.Client, off SimRules) string {
	for seed := range uint64(40) {
		if err := client.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		if diff := compareHistory(t, client, seed, off); diff != "" {
			return fmt.Sprintf("seed %d, %s", seed, diff)
		}
	}
	return ""
}

// SimRules are simRules for the tests that start a Redis.
type SimRules = simRules

// BrokenSimRules are the rules that the comparison must see if they are broken.
func BrokenSimRules() map[string]SimRules {
	return map[string]SimRules{
		"trust": {trust: true}, "noPromise": {noPromise: true}, "tie": {tie: true}, "regrant": {regrant: true},
		"noVoid": {noVoid: true}, "noAbstain": {noAbstain: true}, "noPrepare": {noPrepare: true},
		"anyClock": {anyClock: true}, "noHeal": {noHeal: true}, "noRetake": {noRetake: true},
		"oldStamps": {oldStamps: true}, "noRaise": {noRaise: true}, "forgetVoid": {forgetVoid: true},
	}
}

func compareHistory(t *testing.T, client *redis.Client, seed uint64, off simRules) string {
	random := rand.New(rand.NewPCG(seed, 1))
	info, err := client.InfoMap(t.Context(), "server").Result()
	if err != nil {
		t.Fatal(err)
	}
	var clock int64
	node := newSimNode(func() int64 { return clock }, off)
	node.runID = info["Server"]["run_id"]
	node.started = serverTime(t, client)/1e6*1e6 - simNumber(info["Server"]["uptime_in_seconds"])*1e6
	for step := range 80 {
		s, keys, argv := randomCall(random, node, serverTime(t, client))
		args := make([]any, len(argv))
		for i, a := range argv {
			args[i] = a
		}
		clock = serverTime(t, client)
		real, err := client.Eval(t.Context(), s.Src, keys, args...).Slice()
		if err != nil {
			t.Fatal(err)
		}
		ours := node.run(s, keys, argv)
		what := fmt.Sprintf("step %d: %s %q %q", step, scriptName(s), keys, argv)
		if !alike(real, ours) {
			return fmt.Sprintf("%s: Redis answers %q, the simulated node %q", what, real, ours)
		}
		for _, key := range keys {
			text, err := client.Get(t.Context(), key).Result()
			value, held := node.get(key)
			if (err == nil) != held || !sameStored(text, value) {
				return fmt.Sprintf("%s leaves %s %q in Redis, %q in the simulated node", what, key, text, value)
			}
			if left := client.PTTL(t.Context(), key).Val().Milliseconds(); held && !near(left, node.pttl(key)) {
				return fmt.Sprintf("%s leaves %s for %d ms in Redis, for %d ms in the simulated node", what, key, left, node.pttl(key))
			}
		}
		if random.IntN(6) == 0 { // a lease, a promise or a value ends
			gone := keys[random.IntN(3)]
			if text, ok := node.get(gone); ok && storedEnd.MatchString(text) {
				text = storedEnd.ReplaceAllString(text, "${1}@1 ")
				client.Set(t.Context(), gone, text, redis.KeepTTL)
				node.data[gone] = simEntry{text, node.data[gone].ends}
			} else {
				client.Del(t.Context(), gone)
				delete(node.data, gone)
			}
		}
	}
	return ""
}

// storedEnd is when a value ends that replaced VOID.
var storedEnd = regexp.MustCompile(`^(\d+ \d )@(\d+) `)

// sameStored reports whether two keys store the same, except for a little time.
func sameStored(real, ours string) bool {
	a, b := storedEnd.FindStringSubmatch(real), storedEnd.FindStringSubmatch(ours)
	if a == nil || b == nil {
		return real == ours
	}
	return near(simNumber(a[2]), simNumber(b[2])) && real[len(a[0]):] == ours[len(b[0]):] && a[1] == b[1]
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
func alike(real, ours []any) bool {
	if len(real) != len(ours) {
		return false
	}
	for i := range real {
		a, isTime := real[i].(int64)
		b, _ := ours[i].(int64)
		switch {
		case isTime && i > 0:
			if !near(a, b) {
				return false
			}
		case i == 2 && (real[0] == int64(voteAbstains) || real[0] == int64(voteClock)):
			// Uptime counts whole seconds.
			a, _ := strconv.ParseInt(real[i].(string), 10, 64)
			b, _ := strconv.ParseInt(ours[i].(string), 10, 64)
			if max(a-b, b-a) > 3_000_000 {
				return false
			}
		case !reflect.DeepEqual(real[i], ours[i]):
			return false
		}
	}
	return true
}

func scriptName(s *script) string {
	return map[*script]string{
		quorumAcquireScript: "acquire", quorumPrepareScript: "prepare", quorumAcceptScript: "accept",
		quorumExtendScript: "extend", quorumReleaseScript: "release", quorumReadScript: "read",
	}[s]
}

func randomCall(random *rand.Rand, node *simNode, now int64) (s *script, keys, argv []string) {
	key := fmt.Sprintf("{k%d}", random.IntN(2))
	keys = []string{key, companion(key, "ballot"), companion(key, "accepted")}
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	owner := pick("o/0", "o/1", "o/2;60000")
	minutes := func() string { return fmt.Sprint((1 + random.IntN(9)) * 60_000) }
	// A guard that is far longer than the server runs, or shorter.
	guard := pick("0", "0", "-5000", "86400000")
	promise, _ := node.get(keys[1])
	v := newVote(0, reply{fields: []any{int64(0), "0", "", "", "", int64(0), promise}}, nil)
	ballot := int64(max(v.at.ballot, 1)) + int64(random.IntN(4)-1)
	value := pick(void, "\x005:a", "\x006:b", begun("o/2;60000", time.Minute), begun("o/1", time.Hour), "\x005:"+string(make([]byte, 600)))
	b := fmt.Sprint(max(ballot, 1))
	switch random.IntN(9) {
	case 0, 1, 2:
		off := []int64{0, 0, 0, 60e6, -60e6}[random.IntN(5)]
		return quorumAcquireScript, keys, []string{owner, minutes(), minutes(), fmt.Sprint(now + off), "30000000", guard,
			pick("", "", "o/1", "o/2;60000"), pick("", "1")}
	case 3:
		return quorumPrepareScript, keys, []string{owner, b, minutes(), guard, pick("", "1")}
	case 4, 5:
		return quorumAcceptScript, keys, []string{owner, b, pick("0", "1"), value, minutes(), minutes(),
			pick(modeKeep, modeEnd, modeRepair, modeHeal), guard, "channel"}
	case 6:
		return quorumExtendScript, keys, []string{owner, minutes(), b, minutes(), guard,
			pick("", begun(owner, time.Minute)), pick("", "1")}
	case 7:
		return quorumReleaseScript, keys, []string{owner, pick("0", b), minutes(), pick("", "channel")}
	default:
		return quorumReadScript, keys, []string{"", guard}
	}
}
