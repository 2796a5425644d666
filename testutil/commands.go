package testutil

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Commands runs fn and returns how often the node ran each command during that time, as INFO
// commandstats counts it. It counts all clients. Names are in lower case, and subcommands are under
// their command ("client" for CLIENT SETINFO). Commands that a script calls are counted beside the
// script's own EVALSHA; a go-redis connection begins with HELLO and CLIENT. It needs a real server.
func (n *Node) Commands(t testing.TB, fn func()) map[string]int64 {
	t.Helper()
	n.real("Commands")
	client := redis.NewClient(&redis.Options{Addr: n.Addr(), PoolSize: 1})
	defer client.Close()
	// The first call opens the connection, which itself sends commands.
	n.commandStats(t, client)
	before := n.commandStats(t, client)
	fn()
	counts := n.commandStats(t, client)
	for command := range counts {
		if counts[command] -= before[command]; counts[command] == 0 {
			delete(counts, command)
		}
	}
	delete(counts, "info")
	return counts
}

func (n *Node) commandStats(t testing.TB, client *redis.Client) map[string]int64 {
	t.Helper()
	sections, err := client.InfoMap(context.Background(), "commandstats").Result()
	if err != nil {
		t.Fatalf("testutil: the node at %s: %v", n.Addr(), err)
	}
	counts := map[string]int64{}
	for _, section := range sections {
		for name, stats := range section {
			command, ok := strings.CutPrefix(name, "cmdstat_")
			if !ok {
				continue
			}
			command, _, _ = strings.Cut(command, "|")
			counts[command] += calls(stats)
		}
	}
	return counts
}

// calls takes 2 from "calls=2,usec=31,…".
func calls(stats string) int64 {
	first, _, _ := strings.Cut(stats, ",")
	n, _ := strconv.ParseInt(strings.TrimPrefix(first, "calls="), 10, 64)
	return n
}
