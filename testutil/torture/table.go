package main

import (
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/onelane/onelane/testutil/internal/server"
)

// A result is what was counted for one library under one fault.
type result struct {
	Library string `json:"library"`
	Fault   string `json:"fault"`
	verdict
}

// table writes two tables of libraries × faults.
func table(w io.Writer, results []result) {
	var rows, columns []string
	cells := make(map[[2]string]result)
	for _, r := range results {
		if !slices.Contains(rows, r.Library) {
			rows = append(rows, r.Library)
		}
		if !slices.Contains(columns, r.Fault) {
			columns = append(columns, r.Fault)
		}
		cells[[2]string{r.Library, r.Fault}] = r
	}
	write := func(title string, cell func(result) string) {
		fmt.Fprintf(w, "\n%s\n\n| |%s|\n|---%s|\n", title, " "+strings.Join(columns, " | ")+" ", strings.Repeat("|---", len(columns)))
		for _, row := range rows {
			fmt.Fprintf(w, "| %s |", row)
			for _, column := range columns {
				text := "–"
				if r, ok := cells[[2]string{row, column}]; ok {
					text = cell(r)
				}
				fmt.Fprintf(w, " %s |", text)
			}
			fmt.Fprintln(w)
		}
	}
	write("Double holders / updates lost without a fence / updates lost with a fence / stuck keys:", func(r result) string {
		fenced := "no tokens"
		if l, err := libraryNamed(r.Library); err == nil && l.tokens {
			fenced = fmt.Sprint(r.LostFenced)
		}
		return fmt.Sprintf("%d / %d / %s / %d", r.Double, r.Lost, fenced, r.Stuck)
	})
	write("Longest wait of a worker that the fault did not strike, and the longest time from the fault to the next holder:", func(r result) string {
		return fmt.Sprintf("%s, %s", seconds(r.Longest), seconds(r.Free))
	})
}

// legend says what the faults are.
func legend(w io.Writer, results []result) {
	fmt.Fprintln(w)
	for _, f := range faults {
		if slices.ContainsFunc(results, func(r result) bool { return r.Fault == f.name }) {
			fmt.Fprintf(w, "- %s: %s.\n", f.name, f.about)
		}
	}
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// versions names what was tried.
func versions() string {
	var names []string
	add := func(binary string, args ...string) {
		out, _ := exec.Command(binary, args...).CombinedOutput()
		line, _, _ := strings.Cut(string(out), "\n")
		names = append(names, line)
	}
	for _, kind := range []server.Kind{server.Redis, server.Etcd, server.Postgres} {
		if path, err := server.Find(kind); err == nil {
			add(path, "--version")
		}
	}
	if path, err := server.Find(server.ZooKeeper); err == nil {
		names = append(names, path)
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			for _, name := range []string{"redsync/v4", "bsm/redislock", "redis/go-redis/v9", "redis/rueidis", "etcd/client/v3", "go-zookeeper/zk", "pgx/v5"} {
				if strings.HasSuffix(m.Path, name) {
					names = append(names, m.Path+" "+m.Version)
				}
			}
		}
	}
	return strings.Join(append(names, runtime.Version()+" "+runtime.GOOS+"/"+runtime.GOARCH), "\n")
}
