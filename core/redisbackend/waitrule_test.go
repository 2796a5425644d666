package redisbackend_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/onelane/onelane/testutil"
)

// waitRule stands between clients and a Redis, and answers WAIT as Redis 7.2 and Valkey do. There WAIT
// covers what its own connection wrote last. An older Redis covers all that was written before.
// waitRule also notes commands that succeeded and wrote nothing.
type waitRule struct {
	net.Listener
	node  *testutil.Node
	admin *redis.Client

	// one keeps commands apart, so that a change of the offset is that of one command. WAIT does not
	// need it.
	one    sync.Mutex
	silent []string
}

func newWaitRule(t testing.TB, node *testutil.Node) *waitRule {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, "Listen", err)
	w := &waitRule{Listener: l, node: node, admin: node.Client()}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go w.serve(t, c)
		}
	}()
	return w
}

// client returns a client of the Redis behind w.
func (w *waitRule) client(t testing.TB) *redis.Client {
	return newClient(t, &redis.Options{Addr: w.Addr().String()})
}

func (w *waitRule) serve(t testing.TB, client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", w.node.Addr())
	if err != nil {
		return
	}
	defer server.Close()
	requests, replies := bufio.NewReader(client), bufio.NewReader(server)
	written := int64(0) // the offset after the connection's last write
	for {
		raw, words, err := readRESP(requests)
		if err != nil {
			return
		}
		reply, pubsub := "", false
		switch strings.ToLower(words[0]) {
		case "wait":
			reply, err = w.wait(t, words, written, func() (string, error) { return exchange(server, replies, raw) })
		case "subscribe", "ssubscribe":
			pubsub = true
		default:
			reply, err = w.command(t, words, &written, func() (string, error) { return exchange(server, replies, raw) })
		}
		if pubsub {
			_, _ = io.WriteString(server, raw)
			go func() { _, _ = io.Copy(server, requests) }()
			_, _ = io.Copy(client, replies)
			return
		}
		if err != nil {
			return
		}
		if _, err := io.WriteString(client, reply); err != nil {
			return
		}
	}
}

// command passes on one command, and notes whether it wrote.
func (w *waitRule) command(t testing.TB, words []string, written *int64, exchange func() (string, error)) (string, error) {
	w.one.Lock()
	defer w.one.Unlock()
	before, _ := w.replication(t)
	reply, err := exchange()
	if err != nil {
		return "", err
	}
	after, _ := w.replication(t)
	switch {
	case after != before:
		*written = after
	case succeeded(words, reply):
		w.silent = append(w.silent, fmt.Sprintf("%.60q answered %q", words, reply))
	}
	return reply, nil
}

// succeeded reports whether the answer to a command that replicas have to confirm means that it was
// done. The others have no WAIT, but write as well.
func succeeded(words []string, reply string) bool {
	switch strings.ToLower(words[0]) {
	case "eval", "evalsha":
		return strings.HasPrefix(reply, "*1\r\n:1\r\n") || strings.HasPrefix(reply, "*2\r\n:1\r\n")
	case "set":
		return reply == "$-1\r\n"
	default:
		return false
	}
}

// wait answers for the replicas that have what the connection wrote, if they are enough.
func (w *waitRule) wait(t testing.TB, words []string, written int64, exchange func() (string, error)) (string, error) {
	n, err := strconv.Atoi(words[1])
	if err != nil {
		return "", err
	}
	have := 0
	_, acknowledged := w.replication(t)
	for _, offset := range acknowledged {
		if offset >= written {
			have++
		}
	}
	if have >= n {
		return fmt.Sprintf(":%d\r\n", have), nil
	}
	return exchange()
}

// replication returns the offset of the master, and those that its replicas acknowledged.
func (w *waitRule) replication(t testing.TB) (offset int64, acknowledged []int64) {
	info, err := w.admin.Info(t.Context(), "replication").Result()
	if err != nil {
		return 0, nil // the node or the test has ended
	}
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "master_repl_offset" {
			offset, _ = strconv.ParseInt(value, 10, 64)
		}
		if state, is := strings.CutPrefix(name, "slave"); is && strings.Contains(value, "state=online") && strings.Trim(state, "0123456789") == "" {
			_, rest, _ := strings.Cut(value, "offset=")
			at, _, _ := strings.Cut(rest, ",")
			n, _ := strconv.ParseInt(at, 10, 64)
			acknowledged = append(acknowledged, n)
		}
	}
	return offset, acknowledged
}

// wroteNothing returns the commands that succeeded and wrote nothing.
func (w *waitRule) wroteNothing() []string {
	w.one.Lock()
	defer w.one.Unlock()
	return w.silent
}

// exchange sends a request to a server and returns its answer.
func exchange(server io.Writer, replies *bufio.Reader, request string) (string, error) {
	if _, err := io.WriteString(server, request); err != nil {
		return "", err
	}
	reply, _, err := readRESP(replies)
	return reply, err
}

// readRESP returns a request or a reply as it came, and its texts.
func readRESP(r *bufio.Reader) (raw string, texts []string, err error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", nil, err
	}
	n, _ := strconv.Atoi(strings.TrimSpace(line[1:]))
	switch line[0] {
	case '$':
		if n < 0 {
			return line, []string{""}, nil
		}
		text := make([]byte, n+2)
		_, err = io.ReadFull(r, text)
		return line + string(text), []string{string(text[:n])}, err
	case '*':
		for range n {
			part, more, err := readRESP(r)
			if err != nil {
				return "", nil, err
			}
			line, texts = line+part, append(texts, more...)
		}
	}
	return line, texts, nil
}
