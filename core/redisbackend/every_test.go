package redisbackend_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	ossignal "os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

const jobInterval = 200 * time.Millisecond

// runJob is the work of a child: a job that says in Redis when it begins and ends, and which record
// it found. It hangs once, if somebody asks for it.
func runJob(addr string) {
	ctx, stop := ossignal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	client := redis.NewClient(&redis.Options{Addr: addr})
	l, err := core.New(one(client), core.WithTTL(5*time.Second))
	if err != nil {
		panic(err)
	}
	say := func(what, more string) {
		if err := client.RPush(context.Background(), "said", fmt.Sprintf("%s %d %s", what, os.Getpid(), more)).Err(); err != nil {
			panic(err)
		}
	}
	err = core.Every(ctx, l, "report", jobInterval, func(ctx context.Context) error {
		record, newest := "", 0
		for _, key := range []string{"every:report:last", "every:report:last2"} {
			st, err := l.Inspect(context.WithoutCancel(ctx), key)
			if err != nil {
				panic(err)
			}
			number := 0
			if _, err := fmt.Sscan(string(st.Value), &number); err == nil && number > newest {
				record, newest = string(st.Value), number
			}
		}
		say("begin", record)
		if client.GetDel(context.Background(), "hang").Val() != "" {
			say("hang", "")
			select {}
		}
		time.Sleep(20 * time.Millisecond)
		say("end", "")
		return nil
	})
	if ctx.Err() == nil {
		panic(err)
	}
	os.Exit(0)
}

// Three processes have a job. The runner is killed in the middle of a slot: another one runs the
// slot again. Nobody runs a slot that is recorded.
func TestEvery_RunnerKilled(t *testing.T) {
	t.Parallel()
	node := testutil.Redis(t)
	client := node.Client()
	children, start := make(map[string]*exec.Cmd), time.Now()
	for range 3 {
		c := startChild(t, "EVERY="+node.Addr())
		children[fmt.Sprint(c.Process.Pid)] = c
	}
	said := func(what string) (pids, more []string) {
		lines, err := client.LRange(t.Context(), "said", 0, -1).Result()
		ok(t, "LRANGE", err)
		for _, line := range lines {
			if fields := strings.SplitN(line, " ", 3); what == "" || fields[0] == what {
				pids, more = append(pids, fields[1]), append(more, line)
			}
		}
		return pids, more
	}
	ends := func(n int) func() bool {
		return func() bool { pids, _ := said("end"); return len(pids) >= n }
	}
	eventually(t, "20 runs", ends(20))
	begun, _ := said("begin")
	if most := int(time.Since(start)/jobInterval) + 1; len(begun) > most {
		t.Errorf("%d runs in the time of %d slots", len(begun), most)
	}
	ok(t, "SET", client.Set(t.Context(), "hang", "yes", 0).Err())
	hangs := func() string { pids, _ := said("hang"); return strings.Join(pids, " ") }
	eventually(t, "a run that hangs", func() bool { return hangs() != "" })
	killed := hangs()
	ok(t, "Kill", children[killed].Process.Kill())
	_ = children[killed].Wait()
	delete(children, killed)
	before, _ := said("end")
	eventually(t, "10 more runs", ends(len(before)+10))
	for pid, c := range children {
		ok(t, "SIGTERM", c.Process.Signal(syscall.SIGTERM))
		ok(t, "the end of child "+pid, c.Wait())
	}

	// The runs are one after the other, and each finds a record of its own, except the one that
	// follows the run that hung.
	_, lines := said("")
	last, again := "", 0
	for i, line := range lines {
		fields := strings.SplitN(line, " ", 3)
		if fields[0] != "begin" {
			continue
		}
		if fields[2] == last && i > 0 {
			again++
			if !strings.HasPrefix(lines[i-1], "hang ") {
				t.Errorf("%q begins after %q and finds the same record", line, lines[i-1])
			}
		} else if i > 0 && !strings.HasPrefix(lines[i-1], "end ") {
			t.Errorf("%q begins after %q", line, lines[i-1])
		}
		last = fields[2]
	}
	if again != 1 {
		t.Errorf("%d slots ran again, want the one that hung:\n%s", again, strings.Join(lines, "\n"))
	}
}
