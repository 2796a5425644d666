package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/onelane/onelane/testutil/internal/server"
)

// none is a peer that does not lock.
var none = peer{"none", theirs, true, func(string) (locker, func(), error) {
	return lockFunc(func(context.Context, string) (func(context.Context) error, error) {
		return func(context.Context) error { return nil }, nil
	}), func() {}, nil
}}

func TestMain(m *testing.M) {
	unlisted = append(unlisted, none)
	if isChild() { // this binary is its own child
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// patiently repeats what may fail because the machine stands still. A lock that does not exclude and
// wrong books stay failures.
func patiently(t testing.TB, do func() error) error {
	t.Helper()
	for try := 1; ; try++ {
		err := do()
		if err == nil || try == 3 {
			return err
		}
		for _, wrong := range []string{"does not exclude", "do not add up", "ran the handler"} {
			if strings.Contains(err.Error(), wrong) {
				return err
			}
		}
		t.Logf("try %d: %v", try, err)
	}
}

// BenchmarkScenarios runs each scenario once per iteration, with small numbers: it shows that they work. The table of go run . is
// what compares.
func BenchmarkScenarios(b *testing.B) {
	servers := &bench{short: true}
	b.Cleanup(servers.close)
	ordinary := regexp.MustCompile("^ordinary-(3x3-2of4-20ms|9x1-1of1-0s|etcd-3of12-50ms|lone)$") // they are too many
	for _, s := range all(time.Millisecond) {
		if strings.HasPrefix(s.name, "ordinary-") && !ordinary.MatchString(s.name) {
			continue
		}
		b.Run(s.name, func(b *testing.B) {
			var last result
			for b.Loop() {
				err := patiently(b, func() (err error) {
					last, err = s.run(b.Context(), servers, 1, 50*time.Millisecond, io.Discard)
					return err
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			for _, row := range last.Rows {
				unit := strings.ReplaceAll(row.Name+":"+last.Columns[0], " ", "-")
				b.ReportMetric(row.Median[0], unit)
			}
		})
	}
}

func TestEveryPeerExcludes(t *testing.T) {
	b := &bench{}
	t.Cleanup(b.close)
	addr, err := b.redis()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range peers {
		if err := patiently(t, func() error { return exclusion(t.Context(), p, addr) }); err != nil {
			t.Error(err)
		}
	}
}

func TestAPeerThatDoesNotLockIsFound(t *testing.T) {
	b := &bench{}
	t.Cleanup(b.close)
	addr, err := b.redis()
	if err != nil {
		t.Fatal(err)
	}
	for name, run := range map[string]func() error{
		"exclusion": func() error { return exclusion(t.Context(), none, addr) },
		"hot key": func() error {
			cs, err := lockers([]peer{none}, addr, measureHot(16))
			if err == nil {
				_, err = cs[0].run(t.Context(), 300*time.Millisecond)
			}
			return err
		},
		"processes": func() error {
			_, err := processes(t.Context(), 4, order{peer: none.name, addr: addr, key: "hot", goroutines: 4, d: 300 * time.Millisecond})
			return err
		},
	} {
		err := run()
		for try := 1; err == nil && try < 20; try++ { // increments overlap by chance, and rarely where one core is busy otherwise
			err = run()
		}
		if err == nil || !strings.Contains(err.Error(), "does not exclude") {
			t.Errorf("%s: a peer that does not lock gave the error %v", name, err)
		}
	}
}

func TestTheCommandWritesATableAndJSON(t *testing.T) {
	args := []string{"-only", "^own-keys-1$", "-rounds", "2", "-time", "20ms"}
	var table, asJSON bytes.Buffer
	write := func(to *bytes.Buffer, args ...string) error {
		return patiently(t, func() error {
			to.Reset()
			return run(t.Context(), args, to, io.Discard)
		})
	}
	if err := write(&table, args...); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"### own-keys-1", "| onelane | ", "| redsync | ", "medians of 2 rounds", "× best peer"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table has no %q:\n%s", want, &table)
		}
	}
	if err := write(&asJSON, append(args, "-json")...); err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(asJSON.Bytes(), &r); err != nil {
		t.Fatalf("%v in %s", err, &asJSON)
	}
	if len(r.Results) != 1 || len(r.Results[0].Rows) != len(peers)+len(shares) || r.Results[0].Rows[0].Median[0] <= 0 {
		t.Errorf("the JSON is %s", &asJSON)
	}
	// The target is about another one.
	if err := write(&asJSON, append(args, "-json", "-contender", "^onelane$")...); err != nil || strings.Contains(asJSON.String(), "targets") {
		t.Errorf("one contender alone: %v\n%s", err, &asJSON)
	}
	if err := run(t.Context(), []string{"-h"}, io.Discard, io.Discard); err != nil {
		t.Errorf("-h: %v", err)
	}
	if err := run(t.Context(), []string{"hot-key"}, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), `"hot-key"`) {
		t.Errorf("an argument that is no flag: %v", err)
	}
	if err := run(t.Context(), []string{"-only", "nosuch"}, io.Discard, io.Discard); err == nil {
		t.Error("a scenario that is not there was not missed")
	}
}

func TestMediansRatiosAndTargets(t *testing.T) {
	s := scenario{
		name:    "s",
		columns: []column{{"per s", false}, {"ms", true}},
		targets: []target{
			{"twice", timesBest("we", "per s", false), 2, 0},
			{"five times", timesBest("we", "per s", false), 5, 0},
			{"half the wait", timesBest("we", "ms", true), 0, 0.5},
		},
	}
	cs := []contender{{name: "we", kind: ours}, {name: "a", kind: theirs}, {name: "b", kind: theirs}, {name: "bare", kind: reference}}
	r := s.summarize(cs, [][]sample{{{300, 1}, {100, 3}, {400, 2}}, {{90, 8}}, {{100, 9}, {110, 7}}, {{1000, 0.1}}})
	if got := r.of("we", "per s"); got != 300 {
		t.Errorf("the median of 300, 100 and 400 is %v", got)
	}
	if got := r.of("b", "per s"); got != 105 {
		t.Errorf("the median of 100 and 110 is %v", got)
	}
	for i, want := range []float64{300. / 105, 90. / 105, 1, 1000. / 105} {
		if got := r.Rows[i].Ratio; got != want {
			t.Errorf("the ratio of %s is %v, want %v", r.Rows[i].Name, got, want)
		}
	}
	for i, want := range []bool{true, false, true} {
		if r.Targets[i].Met != want {
			t.Errorf("target %+v, want met %v", r.Targets[i], want)
		}
	}
	s.limits = map[string]string{"we": "bare", "a": "bare"}
	for i, want := range []verdict{{Met: true}, {}, {Met: true}} {
		if got := s.summarize(cs, [][]sample{{{300, 1}}, {{90, 8}}, {{100, 9}}, {{1000, 0.1}}}).Targets[i]; got.Met != want.Met || got.LimitOf != "" {
			t.Errorf("target %+v, want met %v and no limit, as bare has 10 times b's", got, want.Met)
		}
	}
	if got := s.summarize(cs, [][]sample{{{150, 1}}, {{90, 8}}, {{100, 9}}, {{400, 0.1}}}).Targets; got[0].LimitOf != "" || got[1].LimitOf != "bare" || got[1].Limit != 4 {
		t.Errorf("where bare has 4 times b's the targets of 2 and 5 times are %+v", got[:2])
	}
	if got := s.summarize(cs, [][]sample{{{300, 1}}, {{90, 8}}, {{100, 9}}, {{150, 0.1}}}).Targets[0]; !got.Met || got.LimitOf != "" {
		t.Errorf("a target of 2 times that is met by 3, where bare has 1.5 times b's, is %+v", got)
	}
	if got := s.summarize(cs[:3], [][]sample{{{150, 1}}, {{90, 8}}, {{100, 9}}}).Targets[1]; got.Met || got.LimitOf != "" {
		t.Errorf("without the contender that is the limit the target is %+v", got)
	}
	s.columns[0].lower = true
	if got := s.summarize(cs, [][]sample{{{2, 1}}, {{4, 1}}, {{8, 1}}, {{1, 1}}}).Rows[0].Ratio; got != 2 {
		t.Errorf("half of the best peer's is a ratio of %v where less is better", got)
	}
}

func TestOnlyWhatClientsSendIsCounted(t *testing.T) {
	for line, want := range map[string]string{
		`+1700000000.000001 [0 127.0.0.1:5000] "SET" "k" "v"`:     "set",
		`+1700000000.000001 [0 127.0.0.1:5000] "evalsha" "] lua"`: "evalsha",
		`+1700000000.000001 [0 lua] "GET" "k"`:                    "",
		`+1700000000.000001 [0 127.0.0.1:5000] "HELLO" "3"`:       "",
		`+1700000000.000001 [0 [::1]:5000] "PING"`:                "",
		`+OK`: "",
	} {
		if got := sent(line); got != want {
			t.Errorf("%s is %q, want %q", line, got, want)
		}
	}
}

func TestDurableServersSayWhatCommitWaitsFor(t *testing.T) {
	b := &bench{short: true, contender: regexp.MustCompile(`^SELECT … FOR UPDATE$`)}
	t.Cleanup(b.close)
	for kind, want := range map[server.Kind]struct {
		settings string
		trips    float64
	}{
		server.MySQL:    {"innodb_flush_log_at_trx_commit=1, log_bin=ON, sync_binlog=1", 8},
		server.Postgres: {"fsync=on, full_page_writes=on, synchronous_commit=on", 5},
	} {
		if _, err := server.Find(kind); err != nil && !server.Required() {
			t.Log(err)
			continue
		}
		var r result
		err := patiently(t, func() (err error) {
			if r, err = hotRow(database{kind: kind, durable: true}, 8).run(t.Context(), b, 1, 100*time.Millisecond, io.Discard); err != nil {
				return err
			}
			// In 100 ms a busy machine may sell nothing, or prepare its statements late.
			if got := r.of(forUpdateName, "round trips"); math.Abs(got-want.trips) > 0.01 {
				return fmt.Errorf("%s: a sale takes %v round trips, want %v", kind, got, want.trips)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(r.About, want.settings) {
			t.Errorf("%s: no %q in %s", kind, want.settings, r.About)
		}
	}
}

func TestASlowerDiskIsSlower(t *testing.T) {
	b := &bench{short: true}
	t.Cleanup(b.close)
	for _, kind := range []server.Kind{server.MySQL, server.Postgres} {
		if _, err := server.Find(kind); err != nil && !server.Required() {
			t.Log(err)
			continue
		}
		slow := database{kind, true, 2 * time.Millisecond}
		said, err := b.durability(t.Context(), slow) // which is an error where a COMMIT is too fast
		if runtime.GOOS != "linux" {
			if err == nil || !strings.Contains(err.Error(), "on Linux") {
				t.Errorf("%s on %s: %v", kind, runtime.GOOS, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(said, "emulated") || kind == server.Postgres && !regexp.MustCompile(`By its own clock a sync took ([2-9]|\d\d+)\.\d+ ms`).MatchString(said) {
			t.Errorf("%s says %s", kind, said)
		}
		if _, err := b.database(database{kind: kind, durable: true}); err != nil {
			t.Fatal(err)
		}
		absent := database{kind, true, 10 * time.Second} // longer than any disk takes
		b.databases[absent] = b.databases[database{kind: kind, durable: true}]
		if said, err := b.durability(t.Context(), absent); err == nil || !strings.Contains(err.Error(), preload) {
			t.Errorf("%s without the slower disk: %q, %v", kind, said, err)
		}
	}
}

func TestNoCompiler(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("CC", "")
	if _, err := slowDisk(t.TempDir(), time.Millisecond); err == nil || runtime.GOOS == "linux" && !strings.Contains(err.Error(), "apt-get install gcc") {
		t.Errorf("without a compiler: %v", err)
	}
}

// The CPU time of a database that somebody else started is not known: that is not 0, nor a target that was missed.
func TestAFigureThatIsNotKnown(t *testing.T) {
	if cpu := (&bench{}).allCPU(database{kind: server.MySQL}); finite(cpu) {
		t.Errorf("the CPU time of servers that are not there is %v", cpu)
	}
	s := scenario{name: "s", columns: []column{{"per s", false}, {"µs CPU", true}}, targets: []target{{"little CPU", times("we", "they", "µs CPU"), 0, 1}}}
	r := s.summarize([]contender{{name: "we", kind: ours}, {name: "they", kind: theirs}}, [][]sample{{{3, math.NaN()}}, {{2, math.NaN()}}})
	var table bytes.Buffer
	r.markdown(&table)
	if !strings.Contains(table.String(), "| we | 3.00 | – |") || !strings.Contains(table.String(), "**–**, not known here") {
		t.Errorf("the table is %s", &table)
	}
	asJSON, err := json.Marshal(r)
	if err != nil || !strings.Contains(string(asJSON), `"median":[3,null]`) || !strings.Contains(string(asJSON), `"figure":null`) {
		t.Errorf("the JSON is %s, %v", asJSON, err)
	}
}
