package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/onelane/onelane/testutil"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func runSale(t *testing.T, args ...string) result {
	t.Helper()
	var out, errs bytes.Buffer
	code := run(t.Context(), append([]string{"-json"}, args...), &out, &errs)
	var r result
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v in %q: %s", err, out.String(), errs.String())
	}
	if want := map[bool]int{true: 0, false: 1}[r.OK]; code != want {
		t.Fatalf("exit status %d, want %d: %s%s", code, want, out.String(), errs.String())
	}
	return r
}

// runNaive sells without guards until the sales have gone wrong in each given way: by chance one
// may go well.
func runNaive(t *testing.T, oversold, doubled bool, args ...string) {
	t.Helper()
	var wrong result
	for range 20 {
		r := runSale(t, append(args, "-unguarded")...)
		wrong.Oversold += r.Oversold
		wrong.Doubled += r.Doubled
		if r.OK && (r.Oversold > 0 || r.Doubled > 0) {
			t.Fatalf("OK is wrong: %+v", r)
		}
		if (wrong.Oversold > 0 || !oversold) && (wrong.Doubled > 0 || !doubled) {
			return
		}
	}
	t.Errorf("naive code did not fail: %d oversold, %d doubled", wrong.Oversold, wrong.Doubled)
}

// checkSale sells until no request got an error three times, as on a machine that stood still. The
// books must be right in any case.
func checkSale(t *testing.T, sold int64, args ...string) {
	t.Helper()
	r := runSale(t, args...)
	for try := 1; try < 5 && r.OK && r.Errors > 0; try++ {
		t.Logf("sold again, after %d errors: %s", r.Errors, r.LastError)
		r = runSale(t, args...)
	}
	if !r.OK || r.Sold != sold || r.Oversold != 0 || r.Doubled != 0 || r.Errors != 0 || r.Left != 0 {
		t.Errorf("%+v", r)
	}
	answers := r.Created + r.SoldOut + r.Refused + r.Replayed
	// A request that got an error, as on a machine that stood still, was sent again.
	if r.Created != sold || answers != int64(3*r.Buyers) || r.Requests < answers || r.Replayed < int64(r.Buyers) {
		t.Errorf("the answers do not add up: %+v", r)
	}
}

func TestSale_Embedded(t *testing.T) {
	checkSale(t, 20, "-buyers", "300", "-stock", "20")
}

func TestSale_Guarded(t *testing.T) {
	checkSale(t, 20, "-buyers", "300", "-stock", "20", "-guarded")
}

func TestSale_SeveralProcesses(t *testing.T) {
	checkSale(t, 20, "-buyers", "200", "-stock", "20", "-procs", "3", "-redis", testutil.Redis(t).Addr())
}

func TestSale_Etcd(t *testing.T) {
	if etcd := testutil.Etcd(t); etcd != nil {
		checkSale(t, 10, "-buyers", "100", "-stock", "10", "-procs", "2", "-etcd", etcd.Addr())
	}
}

func TestSale_ZooKeeper(t *testing.T) {
	if node := testutil.ZooKeeper(t); node != nil {
		checkSale(t, 10, "-buyers", "100", "-stock", "10", "-procs", "2", "-zookeeper", node.Addr())
	}
}

func TestSale_UnguardedOversellsAndDoubles(t *testing.T) {
	runNaive(t, true, true, "-buyers", "300", "-stock", "20")
}

func TestSale_OnRealServers(t *testing.T) {
	for kind, env := range map[string]string{"mysql": "ONELANE_MYSQL_DSN", "postgres": "ONELANE_POSTGRES_DSN"} {
		t.Run(kind, func(t *testing.T) {
			dsn := os.Getenv(env)
			if dsn == "" {
				if os.Getenv("CI") != "" || os.Getenv("ONELANE_REQUIRE_SERVERS") != "" {
					t.Fatalf("%s is not set: run go run ./testutil/servers go test ./...", env)
				}
				t.Logf("%s is not set: nothing was run on it; go run ./testutil/servers go test ./... sets it", env)
				return
			}
			args := []string{"-redis", testutil.Redis(t).Addr(), "-db", kind + ":" + dsn, "-buyers", "200", "-stock", "20"}
			checkSale(t, 20, args...)
			checkSale(t, 20, append(args, "-guarded")...)
			runNaive(t, true, false, args...)
		})
	}
}

func TestBadInput_OneSentenceAndExitStatus2(t *testing.T) {
	for _, test := range []struct{ args, says string }{
		{"-stock 0", "-stock 0: it must be from 1"},
		{"-buyers many", "-buyers"},
		{"-nonsense", "-nonsense"},
		{"surplus", "surplus"},
		{"-redis nowhere", "host:port"},
		{"-redis 127.0.0.1:1", "the Redis at 127.0.0.1:1 does not answer"},
		{"-redis 127.0.0.1:1 -procs 2", "the Redis at 127.0.0.1:1 does not answer"},
		{"-etcd 127.0.0.1:1", "the etcd at 127.0.0.1:1 does not answer"},
		{"-zookeeper 127.0.0.1:1", "the ZooKeeper at 127.0.0.1:1 does not answer"},
		{"-zookeeper a:1 -redis b:1", "name one kind of server"},
		{"-records a:1", "-records is for several masters"},
		{"-redis a:1,b:1,c:1 -guarded -records d:1,e:1", "name one Redis"},
		{"-redis a:1,b:1,c:1", "add -guarded"},
		{"-guarded -unguarded", "choose one"},
		{"-serve :0 -etcd a:1", "leave -etcd and -zookeeper out"},
		{"-serve :0 -buyers 10 -stock 5", "leave -buyers, -stock out"},
		{"-db oracle:x", "it must be sqlite:FILE, mysql:DSN or postgres:DSN"},
		{"-db postgres:host=127.0.0.1,port=1", "database does not answer"},
		{"-db mysql:root@tcp(127.0.0.1:1)/x", "database does not answer"},
		{"-db sqlite:/no/such/folder/x.db", "database does not answer"},
	} {
		t.Run(test.args, func(t *testing.T) {
			t.Parallel()
			var out, errs bytes.Buffer
			code := run(t.Context(), strings.Fields(test.args), &out, &errs)
			said := errs.String()
			if code != 2 || !strings.Contains(said, test.says) || strings.Count(strings.TrimSpace(said), "\n") != 0 || out.Len() != 0 {
				t.Errorf("exit status %d, stderr %q, stdout %q", code, said, out.String())
			}
		})
	}
}
