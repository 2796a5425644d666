package redisbackend_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/testutil"
)

// formatExample returns a block of code of docs/format.md by what stands behind its fence.
func formatExample(t *testing.T, info string) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "format.md"))
	ok(t, "ReadFile", err)
	_, after, found := strings.Cut(string(page), "\n```"+info+"\n")
	code, _, ended := strings.Cut(after, "\n```\n")
	if !found || !ended {
		t.Fatalf("docs/format.md has no example %q", info)
	}
	return code + "\n"
}

var cliWord = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"|[^\s"]+`)

// cliWords splits a line as redis-cli does.
func cliWords(line string) (words []any) {
	for _, m := range cliWord.FindAllStringSubmatch(line, -1) {
		word := m[0]
		if strings.HasPrefix(word, `"`) {
			word = strings.ReplaceAll(strings.ReplaceAll(m[1], `\"`, `"`), `\\`, `\`)
		}
		words = append(words, word)
	}
	return words
}

// cliReply writes a reply as redis-cli does.
func cliReply(v any, err error) string {
	switch v := v.(type) {
	case int64:
		return fmt.Sprintf("(integer) %d", v)
	case string:
		return strconv.Quote(v)
	case nil:
		if errors.Is(err, redis.Nil) {
			return "(nil)"
		}
	}
	return fmt.Sprint("(error) ", err)
}

// A token is another one in each run.
var anyToken = regexp.MustCompile(`^"\d{16}"$`)

// typeIn runs an example of redis-cli and compares the replies. It returns the last one.
func typeIn(t *testing.T, client *redis.Client, example string) (last string) {
	t.Helper()
	lines := bufio.NewScanner(strings.NewReader(formatExample(t, "redis-cli "+example)))
	commands := 0
	for lines.Scan() {
		line, command := strings.CutPrefix(lines.Text(), "> ")
		if command {
			last = cliReply(client.Do(t.Context(), cliWords(line)...).Result())
			commands++
			continue
		}
		if last != line && !(anyToken.MatchString(last) && anyToken.MatchString(line)) {
			t.Fatalf("%s: Redis answered %s, and the page says %s", example, last, line)
		}
	}
	if commands == 0 {
		t.Fatalf("the example %q has no command", example)
	}
	return last
}

const formatOwner = "billing/0b3f6c1d9a7e4852b6d0c3f1e8a79542"

// The commands of docs/format.md and a Locker exclude each other.
func TestFormat_RedisCLI(t *testing.T) {
	t.Parallel()
	client := testutil.Redis(t).Client()
	l, other := locker(t, one(client)), locker(t, one(client))
	ctx := t.Context()
	before := acquire(t, l, "stock:42", core.WithToken())
	first := token(t, before)
	ok(t, "Release", before.Release(ctx))

	typeIn(t, client, "acquire")
	_, err := l.TryAcquire(ctx, "stock:42")
	var taken *core.TakenError
	if !errors.As(err, &taken) || taken.Holder != formatOwner || taken.RetryAfter > 30*time.Second {
		t.Fatalf("TryAcquire = %v, want a key that %s holds", err, formatOwner)
	}
	second, err := strconv.ParseUint(strings.Trim(typeIn(t, client, "token"), `"`), 10, 64)
	if err != nil || second <= first {
		t.Errorf("token %d after %d, %v", second, first, err)
	}
	if life := client.PTTL(ctx, "onelane:{stock:42}:fence").Val(); life < time.Hour || life > 2*time.Hour {
		t.Errorf("the token counter expires in %v", life)
	}
	typeIn(t, client, "renew")
	if st, err := l.Inspect(ctx, "stock:42"); err != nil || st.Status != core.Held || st.ExpiresIn < 31*time.Second {
		t.Errorf("after the renewal: %+v, %v", st, err)
	}

	// The release wakes a waiter, which would not look again within a minute.
	watched, stop, err := open(t, one(client)).Watch(ctx, "onelane:{stock:42}")
	ok(t, "Watch", err)
	defer stop()
	drain(watched)
	typeIn(t, client, "release")
	select {
	case <-watched:
	case <-time.After(10 * time.Second):
		t.Error("the message of the release did not come")
	}

	k := acquire(t, l, "stock:42", core.WithToken())
	if third := token(t, k); third <= second {
		t.Errorf("token %d after %d", third, second)
	}
	if v := cliReply(client.Do(ctx, "SET", "onelane:{stock:42}", formatOwner, "NX", "GET", "PX", 30000).Result()); v != strconv.Quote(k.Owner()) {
		t.Errorf("the example is granted the key that %s holds: %s", k.Owner(), v)
	}
	typeIn(t, client, "again")
	ok(t, "Extend", k.Extend(ctx, time.Minute))
	ok(t, "Release", k.Release(ctx))

	typeIn(t, client, "seal")
	_, err = other.TryAcquire(ctx, "stock:42")
	var sealed *core.SealedError
	if !errors.As(err, &sealed) || string(sealed.Value) != "sold out" || sealed.Token != 1795351437000512 {
		t.Errorf("TryAcquire = %v, want the seal", err)
	}
	ok(t, "Unseal", l.Unseal(ctx, "stock:42"))
}

func drain(c <-chan struct{}) {
	select {
	case <-c:
	default:
	}
}

// The program of docs/format.md waits for a Locker's release, and a Locker for its release.
func TestFormat_Python(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Fatalf("the program in docs/format.md cannot be checked: install python3: %v", err)
	}
	node := testutil.Redis(t)
	client := node.Client()
	l := locker(t, one(client), core.WithTTL(10*time.Minute))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	k := acquire(t, l, "stock:42", core.WithToken())

	host, port, _ := strings.Cut(node.Addr(), ":")
	program := exec.CommandContext(ctx, python, "-c", formatExample(t, "python"), host, port, "onelane:{stock:42}")
	stdin, err := program.StdinPipe()
	ok(t, "StdinPipe", err)
	stdout, err := program.StdoutPipe()
	ok(t, "StdoutPipe", err)
	program.Stderr = os.Stderr
	ok(t, "Start", program.Start())
	defer func() { ok(t, "the program", program.Wait()) }()
	defer func() { _ = stdin.Close() }()
	lines := bufio.NewReader(stdout)

	eventually(t, "the program has tried and listens", func() bool {
		return client.PubSubNumSub(ctx, "onelane:{stock:42}:free").Val()["onelane:{stock:42}:free"] == 1 &&
			strings.Contains(client.Info(ctx, "commandstats").Val(), "cmdstat_pttl")
	})
	ok(t, "Release", k.Release(ctx)) // ten minutes before the lease would end
	line, err := lines.ReadString('\n')
	ok(t, "the program's output", err)
	var owner string
	var second uint64
	var renewed int
	_, err = fmt.Sscanf(line, "locked %s %d %d", &owner, &second, &renewed)
	if err != nil || second <= token(t, k) || renewed != 1 {
		t.Fatalf("the program says %q: %v", line, err)
	}
	_, err = l.TryAcquire(ctx, "stock:42")
	var taken *core.TakenError
	if !errors.As(err, &taken) || taken.Holder != owner || taken.RetryAfter < 31*time.Second {
		t.Fatalf("TryAcquire = %v, want a key that %s holds and has renewed", err, owner)
	}
	got := acquiring(t, l, "stock:42")
	eventually(t, "the Locker waits", func() bool {
		return client.PubSubNumSub(ctx, "onelane:{stock:42}:free").Val()["onelane:{stock:42}:free"] == 2
	})
	_, err = io.WriteString(stdin, "\n")
	ok(t, "the end of the work", err)
	line, err = lines.ReadString('\n')
	if err != nil || line != "released 1\n" {
		t.Fatalf("the program says %q: %v", line, err)
	}
	next := <-got
	if third := token(t, next); third <= second {
		t.Errorf("token %d after %d", third, second)
	}
	ok(t, "Release", next.Release(ctx))
}

// matches checks what a node holds under a name, and that it expires.
func matches(t *testing.T, client *redis.Client, name, pattern string, args ...any) {
	t.Helper()
	whole := regexp.MustCompile("^" + fmt.Sprintf(pattern, args...) + "$")
	var value string
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) { // on a quorum, a node may be late
		value = client.Get(t.Context(), name).Val()
		if whole.MatchString(value) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%s is %q, want %s", name, value, whole)
		}
	}
	if client.PTTL(t.Context(), name).Val() <= 0 {
		t.Errorf("%s does not expire", name)
	}
}

// The tables of docs/format.md: what one Redis holds.
func TestFormat_Values(t *testing.T) {
	t.Parallel()
	client := testutil.Redis(t).Client()
	l, ctx := locker(t, one(client)), t.Context()
	k := acquire(t, l, "a{b}%", core.WithTag("cart"), core.WithOrphan(time.Minute), core.WithToken(), core.WithTTL(30*time.Second))
	const key = "onelane:{a%7Bb%7D%25}"
	matches(t, client, key, `[^/#]+/[0-9a-f]{32};60000#cart`)
	if left := client.PTTL(ctx, key).Val(); left <= time.Minute || left > 90*time.Second {
		t.Errorf("a lock with an orphan expires in %v, want TTL and retention", left)
	}
	matches(t, client, key+":fence", "%d", token(t, k)+255)
	ok(t, "Seal", k.Seal(ctx, []byte("sold out"), time.Minute))
	matches(t, client, key, "\x00%d:sold out", token(t, k))

	k = acquire(t, l, "plain")
	owner := fnv.New64a()
	_, _ = io.WriteString(owner, k.Owner())
	ok(t, "Seal", k.Seal(ctx, []byte("v"), time.Minute))
	matches(t, client, "onelane:{plain}", "\x000/%x:v", owner.Sum64())

	bare := locker(t, one(client), core.WithPrefix(""))
	k = acquire(t, bare, "bare", core.WithToken())
	matches(t, client, "bare", `[^/#]+/[0-9a-f]{32}`)
	matches(t, client, "{bare}:fence", "%d", token(t, k)+255)
}

// The masters of a quorum hold these keys and values.
func TestFormat_Quorum(t *testing.T) {
	t.Parallel()
	nodes := testutil.Cluster(t, 3)
	l, ctx := locker(t, quorumOf(nodes)), t.Context()
	const key = "onelane:{k}"
	k := acquire(t, l, "k")
	owner, promise := regexp.QuoteMeta(k.Owner()), token(t, k)/256
	for _, n := range nodes {
		eventually(t, "all nodes granted", func() bool { return n.Client().Exists(ctx, key).Val() == 1 })
		matches(t, n.Client(), key, "\x01%s", owner)
		matches(t, n.Client(), key+":promise", "%d", promise)
		if left := n.Client().PTTL(ctx, key+":promise").Val(); left > time.Minute+2*time.Second || left < 30*time.Second {
			t.Errorf("the promise lasts for %v", left)
		}
	}
	ok(t, "Release", k.Release(ctx))
	for _, n := range nodes {
		eventually(t, "the lease is gone", func() bool { return n.Client().Exists(ctx, key).Val() == 0 })
		matches(t, n.Client(), key+":promise", "%d", promise)
	}
}
