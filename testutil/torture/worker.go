package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"time"
)

// workerCommand is the first argument of this binary when it is a worker.
const workerCommand = "worker-of-torture"

// acquireTimeout is how long one call of Acquire may wait. The worker then calls again.
const acquireTimeout = 20 * time.Second

// assignment is what a worker is started with.
type assignment struct {
	Library, Key string
	Addrs        []string // of the worker's own links
}

// Orders are the referee's answer to a report of the worker.
type Orders struct {
	Work time.Duration // how long to work under the lock
	Stop bool
}

// A Claim is a worker's report about a lock that it has.
type Claim struct {
	At    Instant // when Acquire had returned
	Token uint64
	Until Instant // the last instant at which the library said that the lock is held
	How   string  // how it ended
}

// Values are what the two counters of the resource contain. One of them has a fence.
type Values struct{ Plain, Fenced int64 }

// conn is the worker's end of the pipes to the referee.
type conn struct {
	io.Reader
	io.WriteCloser
}

// isWorker does the task of a worker, and reports whether this process is one.
func isWorker() bool {
	if len(os.Args) != 3 || os.Args[1] != workerCommand {
		return false
	}
	var a assignment
	if err := json.Unmarshal([]byte(os.Args[2]), &a); err != nil {
		panic(err)
	}
	referee := rpc.NewClient(conn{os.Stdin, os.Stdout})
	if err := work(a, referee); err != nil {
		fmt.Fprintln(os.Stderr, "torture: a worker:", err)
		os.Exit(1)
	}
	return true
}

func work(a assignment, referee *rpc.Client) error {
	l, err := libraryNamed(a.Library)
	if err != nil {
		return err
	}
	acquire, err := l.open(a.Addrs)
	if err != nil {
		return referee.Call("Referee.Failed", err.Error(), new(bool))
	}
	for {
		var o Orders
		if err := referee.Call("Referee.Want", now(), &o); err != nil || o.Stop {
			return err
		}
		ctx, cancel := context.WithCancel(context.Background()) // no deadline, which would be the lock's, too
		timer := time.AfterFunc(acquireTimeout, cancel)
		h, err := acquire(ctx, a.Key)
		timer.Stop()
		if err == nil {
			err = use(h, referee)
		} else {
			err = referee.Call("Referee.Refused", err.Error(), new(bool))
			time.Sleep(20 * time.Millisecond)
		}
		cancel()
		if err != nil {
			return err
		}
	}
}

// use is what a worker does with the lock: read the counters, work, and write them.
func use(h *holding, referee *rpc.Client) error {
	c := Claim{At: now(), Token: h.token}
	c.Until = c.At
	believes := func() bool {
		t := now()
		if !h.held() {
			return false
		}
		c.Until = t
		return true
	}
	believes()
	var o Orders
	if err := referee.Call("Referee.Held", c, &o); err != nil {
		return err
	}
	var v Values
	if err := referee.Call("Referee.Read", c.Token, &v); err != nil {
		return err
	}
	c.How = "lost"
	for until := time.Now().Add(o.Work); believes(); time.Sleep(2 * time.Millisecond) {
		if time.Now().Before(until) {
			continue
		}
		c.How = "released"
		break
	}
	if c.How == "released" {
		if err := referee.Call("Referee.Writes", c, new(bool)); err != nil {
			return err
		}
		v.Plain++
		v.Fenced++
		if err := referee.Call("Referee.Write", v, new(bool)); err != nil {
			return err
		}
		if !believes() {
			c.How = "lost"
		}
	}
	if err := referee.Call("Referee.Ends", c, new(bool)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = h.release(ctx) // too late to matter: the work is done
	return nil
}
