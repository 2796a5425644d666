package main

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"time"
)

// monitored runs fn and returns how many commands clients sent to the Redis meanwhile. Commands of
// a script do not count, nor do those that a new connection begins with.
func monitored(addr string, fn func() error) (int, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	lines := bufio.NewScanner(conn)
	if _, err := fmt.Fprint(conn, "MONITOR\r\n"); err != nil || !lines.Scan() {
		return 0, fmt.Errorf("MONITOR was not answered: %v", err)
	}
	done := make(chan error, 1)
	go func() {
		err := fn()
		if end, failed := net.Dial("tcp", addr); failed == nil { // MONITOR shows it after all that came before
			_, _ = fmt.Fprintf(end, "ECHO %s\r\n", endOfCount)
			_, _ = bufio.NewReader(end).ReadString('\n')
			_ = end.Close()
		}
		done <- err
	}()
	n := 0
	for lines.Scan() && !strings.Contains(lines.Text(), endOfCount) {
		if command := sent(lines.Text()); command != "" {
			n++
		}
	}
	err = <-done
	if err == nil {
		err = lines.Err()
	}
	return n, err
}

const endOfCount = "end-of-count"

// sent is the command in a line such as `+1.5 [0 127.0.0.1:5] "SET" "k" "v"`, "" for one of a
// script or of a new connection.
func sent(line string) string {
	_, rest, ok := strings.Cut(line, " [")
	from, rest, ok2 := strings.Cut(rest, `] "`)
	if !ok || !ok2 || strings.HasSuffix(from, " lua") {
		return ""
	}
	command := strings.ToLower(strings.SplitN(rest, `"`, 2)[0])
	switch command {
	case "hello", "client", "ping", "auth", "select", "script":
		return ""
	}
	return command
}
