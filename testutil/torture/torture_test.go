package main

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// The fakes break one promise each.
func init() {
	libraries = append(libraries,
		library{name: "fake-open", servers: oneRedis, open: func([]string) (acquire, error) {
			return func(context.Context, string) (*holding, error) {
				return &holding{held: func() bool { return true }, release: func(context.Context) error { return nil }}, nil
			}, nil
		}},
		library{name: "fake-lease", servers: oneRedis, open: openFake(ttl)},
		library{name: "fake-forever", servers: oneRedis, open: openFake(0)})
}

// openFake is SET NX with an expiry, if there is one, and nothing that renews it. The holder knows
// its deadline.
func openFake(expiry time.Duration) func([]string) (acquire, error) {
	return func(addrs []string) (acquire, error) {
		client := redis.NewClient(&redis.Options{Addr: addrs[0]})
		return func(ctx context.Context, key string) (*holding, error) {
			began := time.Now()
			err := client.SetArgs(ctx, key, "held", redis.SetArgs{Mode: "NX", TTL: expiry}).Err()
			if err != nil {
				return nil, err
			}
			held := func() bool { return expiry == 0 || time.Since(began) < expiry-20*time.Millisecond }
			return &holding{held: held, release: func(ctx context.Context) error {
				if !held() {
					return errors.New("lost")
				}
				return client.Del(ctx, key).Err()
			}}, nil
		}, nil
	}
}

func TestMain(m *testing.M) {
	if !isWorker() {
		os.Exit(m.Run())
	}
}

// tortured runs one trial. Its plan has the point, if there is one.
func tortured(t *testing.T, name, struck, point string) verdict {
	t.Helper()
	l, err := libraryNamed(name)
	if err != nil {
		t.Fatal(err)
	}
	f := faults[slices.IndexFunc(faults, func(f fault) bool { return f.name == struck })]
	seed := uint64(1)
	for point != "" && newPlan(seed, f).Point != point {
		seed++
	}
	p := &pool{dir: t.TempDir(), grace: time.Second, shared: make(map[topology]*site)}
	defer p.close()
	h, err := runTrial(t.Context(), p, l, f, seed)
	if err != nil {
		t.Fatal(err)
	}
	v := check(h)
	t.Logf("%+v", v)
	return v
}

func TestTrial_LetsTwoIn(t *testing.T) {
	t.Parallel()
	if v := tortured(t, "fake-open", "kill", ""); v.Double == 0 || v.Lost == 0 {
		t.Errorf("a lock that lets everybody in had %d double holders and %d lost updates", v.Double, v.Lost)
	}
}

func TestTrial_LosesAnUpdate(t *testing.T) {
	t.Parallel()
	if v := tortured(t, "fake-lease", "pause", atWrite); v.Lost == 0 || v.Double > 0 {
		t.Errorf("a lease that ends before the write had %d lost updates and %d double holders", v.Lost, v.Double)
	}
}

func TestTrial_Stuck(t *testing.T) {
	t.Parallel()
	if v := tortured(t, "fake-forever", "kill", ""); v.Stuck != 1 {
		t.Errorf("a key without an expiry is not stuck after its holder was killed: %+v", v)
	}
}

func TestTrial_TakenOver(t *testing.T) {
	t.Parallel()
	v := tortured(t, "fake-lease", "kill", "")
	if v.Stuck+v.Double > 0 || v.Lost > 0 {
		t.Errorf("a lease was not taken over: %+v", v)
	}
}

// held is a hold from one millisecond to another.
func held(worker int, from, until Instant, token uint64) hold {
	return hold{Worker: worker, Claim: Claim{At: 1 + from*1e6, Until: 1 + until*1e6, Token: token}}
}

func TestCheck(t *testing.T) {
	after := held(0, 900, 910, 9)
	for _, test := range []struct {
		name string
		h    history
		want verdict
	}{
		{"one after the other", history{Holds: []hold{held(1, 0, 100, 1), held(2, 100, 200, 2), after}}, verdict{}},
		{"two holders", history{Holds: []hold{held(1, 0, 100, 0), held(2, 99, 200, 0), after}}, verdict{Double: 1}},
		{"one holder beside two", history{Holds: []hold{held(1, 0, 300, 0), held(2, 50, 60, 0), held(3, 70, 80, 0), after}}, verdict{Double: 1}},
		{"told before it looked", history{Holds: []hold{held(1, 0, 100, 0), held(2, 50, 50, 0), after}}, verdict{}},
		{"a lost update", history{Holds: []hold{after}, Plain: counter{Value: 1, Writes: 2}}, verdict{Lost: 1}},
		{"one with a fence", history{Holds: []hold{after}, Fenced: counter{Value: 1, Writes: 3}}, verdict{LostFenced: 2}},
		{"a token that goes back", history{Holds: []hold{held(1, 0, 100, 5), held(2, 100, 200, 4), after}}, verdict{Back: 1}},
		{"a lock that was lost at once", history{Holds: []hold{held(1, 0, 100, 5), held(2, 100, 100, 4), after}}, verdict{}},
		{"a repeated token", history{Holds: []hold{held(1, 0, 100, 5), held(2, 100, 200, 5), after}}, verdict{Back: 1}},
		{"a stuck key", history{Holds: []hold{held(1, 0, 100, 1), held(2, 200, 300, 2)}}, verdict{Stuck: 1}},
		{"a key that is lost at once", history{Holds: []hold{held(1, 0, 100, 1), held(2, 600, 600, 2)}}, verdict{Stuck: 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.h.Fault, test.h.Healed, test.h.Ended = 400e6, 500e6, 1000e6
			got := check(test.h)
			if got.Double != test.want.Double || got.Lost != test.want.Lost || got.LostFenced != test.want.LostFenced ||
				got.Back != test.want.Back || got.Stuck != test.want.Stuck {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
			if found := got.Double+got.Back+got.Stuck > 0 || got.Lost+got.LostFenced > 0; found != (len(got.Findings) > 0) {
				t.Errorf("the findings are %q", got.Findings)
			}
		})
	}
}

func TestCheck_Waits(t *testing.T) {
	v := check(history{
		Holds: []hold{held(0, 0, 100, 1), held(1, 3000, 3100, 2)},
		Waits: []wait{{0, -9e9, 1}, {1, 50e6, 3000e6}, {2, 100e6, 9000e6}},
		Hit:   2, Fault: 100e6, Healed: 200e6, Ended: 9000e6,
	})
	if v.Longest != 2950*time.Millisecond || v.Free.Round(time.Millisecond) != 2900*time.Millisecond {
		t.Errorf("the longest wait is %v, and the key was free after %v", v.Longest, v.Free)
	}
}

// The fence takes no token that is not greater than all before, and only the last one writes.
func TestReferee_Fence(t *testing.T) {
	r := newReferee()
	r.strike = func(int, int, string) {}
	r.work = func(int) time.Duration { return 0 }
	read := func(worker int, token uint64) (v Values) {
		_ = port{r, worker}.Held(Claim{Token: token}, new(Orders))
		_ = port{r, worker}.Read(token, &v)
		return v
	}
	write := func(worker int, v Values) {
		_ = port{r, worker}.Write(Values{v.Plain + 1, v.Fenced + 1}, new(bool))
	}
	old, next, repeated := read(0, 5), read(1, 6), read(2, 6)
	write(1, next)
	write(0, old)
	write(2, repeated)
	if h := r.history; h.Plain != (counter{1, 3}) || h.Fenced != (counter{1, 1}) {
		t.Errorf("without a fence there is %+v, and with one %+v", h.Plain, h.Fenced)
	}
}

func TestPlan_Seed(t *testing.T) {
	for _, f := range faults {
		if a, b := newPlan(7, f), newPlan(7, f); a != b {
			t.Errorf("%s: one seed made the plans %+v and %+v", f.name, a, b)
		}
	}
	if f := faults[0]; newPlan(1, f) == newPlan(2, f) {
		t.Error("two seeds made one plan")
	}
}

func TestLink_Judge(t *testing.T) {
	l, err := newLink("127.0.0.1:1", rand.New(rand.NewPCG(1, 2)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	l.set(late, time.Second)
	delayed, lost := 0, 0
	for range 1000 {
		delay, pass := l.judge(&pair{}, true)
		if !pass || delay >= time.Second {
			t.Fatalf("a late reply: delay %v, passes %v", delay, pass)
		}
		if delay > 0 {
			delayed++
		}
		if delay, pass := l.judge(&pair{}, false); delay > 0 || !pass {
			t.Fatal("a request is late, too")
		}
	}
	l.set(losing, 0)
	for range 1000 {
		client, server := net.Pipe()
		p := &pair{client: client, server: server}
		if _, pass := l.judge(p, true); !pass {
			lost++
			if _, pass := l.judge(p, false); pass {
				t.Fatal("bytes after a gap pass")
			}
		}
	}
	if delayed < 400 || delayed > 600 || lost < 250 || lost > 420 {
		t.Errorf("of 1000 replies each, %d were late and %d lost", delayed, lost)
	}
}

func TestBroken(t *testing.T) {
	for _, test := range []struct {
		library, fault string
		v              verdict
		want           bool
	}{
		{"onelane-redis", "pause", verdict{Lost: 1}, false}, // no fence, no promise
		{"onelane-redis", "pause", verdict{Double: 1}, true},
		{"onelane-redis", "fail-over", verdict{Double: 1}, false},
		{"onelane-redis", "fail-over", verdict{Back: 1}, true},
		{"onelane-redis-3", "restart", verdict{Double: 1}, true},
		{"onelane-sql", "clock", verdict{LostFenced: 1}, true},
		{"onelane-etcd", "kill", verdict{Stuck: 1}, true},
		{"redislock", "pause", verdict{Double: 1, Stuck: 1}, false},
	} {
		if err := broken([]result{{test.library, test.fault, test.v}}); (err != nil) != test.want {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	var out, findings bytes.Buffer
	if err := run(t.Context(), []string{"-only", "^onelane-redis/(kill|pause)$"}, &out, &findings); err != nil {
		t.Fatalf("%v\n%s", err, &findings)
	}
	if text := out.String(); !strings.Contains(text, "| onelane-redis | 0 / ") || strings.Count(text, "\n|") != 6 {
		t.Errorf("the tables are\n%s", text)
	}
	for _, args := range [][]string{{"-only", "nobody"}, {"-only", "("}, {"-rounds", "-1"}, {"word"}} {
		if err := run(t.Context(), args, &out, &findings); err == nil {
			t.Errorf("%q is no error", args)
		}
	}
}
