package core_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strconv"
	"testing"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
	"github.com/redis/go-redis/v9"
)

// The simulation is worth as much as its nodes are like Redis: the same random calls get the same answers, and leave the same.
func TestSimNode_AnswersAsRedis(t *testing.T) {
	t.Parallel()
	client := testutil.Redis(t).Client()
	if found := differences(t, client, rules{}); found != "" {
		t.Fatal(found)
	}
	for name, off := range map[string]rules{ // what the comparison must not overlook
		"releaseAnothers": {releaseAnothers: true}, "extendTakesBack": {extendTakesBack: true}, "extendShortens": {extendShortens: true},
		"raiseNothing": {raiseNothing: true}, "repairNothing": {repairNothing: true}, "repairOldSeals": {repairOldSeals: true},
		"unsealLeavesFence": {unsealLeavesFence: true}, "neverAbstain": {neverAbstain: true},
	} {
		if differences(t, client, off) == "" {
			t.Errorf("%s: the node is not like Redis, and it was not found", name)
		}
	}
}

// differences compares long random histories of a few keys and owners, and tells the first difference.
func differences(t *testing.T, client *redis.Client, off rules) string {
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 1))
		ok(t, "FLUSHALL", client.FlushAll(t.Context()).Err())
		var clock int64
		node := newSimNode(func() int64 { return clock }, off)
		node.runID, node.started = runOf(t, client)
		for step := range 60 {
			script, keys, argv := randomCall(random, node, serverTime(t, client))
			args := make([]any, len(argv))
			for i, a := range argv {
				args[i] = a
			}
			clock = serverTime(t, client)
			real, err := client.Eval(t.Context(), core.Scripts[script], keys, args...).Slice()
			ok(t, script, err)
			if used := usedTime(script, real, client.Get(t.Context(), core.Companion(keys[0], "fence")).Val()); clock <= used && used <= serverTime(t, client) {
				clock = used
			}
			ours := node.run(script, keys, argv)
			what := fmt.Sprintf("seed %d, step %d: %s %q %q", seed, step, script, keys, argv)
			if !alike(real, ours) {
				return fmt.Sprintf("%s: Redis answers %q, the simulated node %q", what, real, ours)
			}
			for _, key := range []string{keys[0], core.Companion(keys[0], "fence")} {
				text, err := client.Get(t.Context(), key).Result()
				value, held := node.get(key)
				if (err == nil) != held || text != value {
					return fmt.Sprintf("%s leaves %s %q in Redis, %q in the simulated node", what, key, text, value)
				}
				if left := client.PTTL(t.Context(), key).Val().Milliseconds(); held && !near(left, node.pttl(key)) {
					return fmt.Sprintf("%s leaves %s for %d ms in Redis, for %d ms in the simulated node", what, key, left, node.pttl(key))
				}
			}
			if random.IntN(6) == 0 { // a lease or a counter ends
				gone := []string{keys[0], core.Companion(keys[0], "fence")}[random.IntN(2)]
				ok(t, "DEL", client.Del(t.Context(), gone).Err())
				delete(node.data, gone)
			}
		}
	}
	return ""
}

// runOf is the server's run, and when it began.
func runOf(t *testing.T, client *redis.Client) (id string, started int64) {
	info, err := client.InfoMap(t.Context(), "server").Result()
	ok(t, "INFO", err)
	return info["Server"]["run_id"], serverTime(t, client) - number(info["Server"]["uptime_in_seconds"])*1e6
}

// usedTime is the server's time if the script has made a token of it.
func usedTime(script string, answer []any, fence string) int64 {
	switch {
	case script == "acquire" && answer[0] == int64(1):
		return number(answer[1].(string))
	case script == "quorum_unseal":
		return number(fence) - 1
	default:
		return 0
	}
}

func serverTime(t *testing.T, client *redis.Client) int64 {
	now, err := client.Time(t.Context()).Result()
	ok(t, "TIME", err)
	return now.UnixMicro()
}

// near allows for the time that passes between two calls: what the calls ask for differs by minutes.
func near(a, b int64) bool { return max(a-b, b-a) < 20_000 }

func alike(real, ours []any) bool {
	if len(real) != len(ours) || real[0] != ours[0] {
		return false
	}
	for i := 1; i < len(real); i++ {
		a, isTime := real[i].(int64)
		b, _ := ours[i].(int64)
		isTime = isTime && real[0] != int64(1)                          // but a token
		if i == 3 && len(real) == 5 && real[i] != "" && ours[i] != "" { // for how many seconds it runs
			if d := number(real[i].(string)) - number(ours[i].(string)); d < -1 || d > 1 {
				return false
			}
			continue
		}
		if isTime && real[0] != int64(7) && !near(a, b) || // it counts in seconds
			!isTime && real[0] != int64(6) && !reflect.DeepEqual(real[i], ours[i]) {
			return false
		}
	}
	return true
}

func randomCall(random *rand.Rand, node *simNode, now int64) (script string, keys, argv []string) {
	key := fmt.Sprintf("{k%d}", random.IntN(2))
	owner := fmt.Sprintf("o/%d", random.IntN(3))
	minutes := func() string { return strconv.Itoa((1 + random.IntN(9)) * 60_000) }
	fence := core.Companion(key, "fence")
	counter, _ := node.get(fence)
	token := max(number(counter)-255+int64(random.IntN(3)-1)*256, 1)
	seal := fmt.Sprintf("\x00%d:v%d", token, random.IntN(2))
	both, life := []string{key, fence}, numeral(3_600_000)
	switch random.IntN(10) {
	case 0, 1:
		return "acquire", both, []string{owner, minutes(), life}
	case 2, 3:
		off := []int64{0, 0, 0, 600e6, -600e6, 1800e6, -1800e6}[random.IntN(7)]
		return "quorum_acquire", both, []string{owner, minutes(), life, numeral(now + off), "900000000",
			[]string{"-5000", "-5000", "36000000"}[random.IntN(3)], []string{"", node.runID, "another"}[random.IntN(3)],
			[]string{"", "1"}[random.IntN(2)]}
	case 4:
		return "extend", []string{key}, []string{owner, minutes()}
	case 5:
		if old, _ := node.get(key); sealed(old) {
			owner = old // as a lost seal is taken back
		}
		return "release", []string{key}, []string{owner, "channel"}
	case 6:
		return "seal", []string{key}, []string{owner, "channel", seal, minutes()}
	case 7:
		if random.IntN(3) > 0 {
			return "inspect", both, nil
		}
		return "unseal", both, []string{"channel", life}
	case 8:
		return "quorum_raise", both, []string{owner, numeral(number(counter) + int64(random.IntN(3)-1)*256), minutes()}
	default:
		if random.IntN(3) == 0 {
			return "quorum_unseal", both, []string{"channel", minutes(), numeral(token), "256"}
		}
		return "quorum_seal", both, []string{owner, "channel", seal, minutes(), numeral(token), life, []string{"", counter, "1"}[random.IntN(3)]}
	}
}
