package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// instanceEnv is set for an instance that a fleet has started. It is this command, started again.
const instanceEnv = "ONELANE_SHOP_INSTANCE"

// fleet is three instances of the shop, each a process, and the balancer in front of them. An instance
// that dies is started again.
type fleet struct {
	config
	stderr io.Writer // of the instances

	mu        sync.Mutex
	instances []*instance
	turn      int   // of the balancer
	closing   bool  // nothing is started any more
	err       error // why an instance could not start, or did not stop well
	running   sync.WaitGroup

	kills  int            // that are still wanted
	next   int            // of moments, for the next kill
	swept  bool           // the last kill was of a sweep
	killed map[string]int // by the moment
}

// instance is one process at a time.
type instance struct {
	name   string
	addr   string // empty while it gets no requests
	cmd    *exec.Cmd
	in     io.Closer // its end stops the process gracefully
	killed bool
	done   chan struct{} // closed when the process has ended
}

func newFleet(c config, stderr io.Writer) (*fleet, error) {
	f := &fleet{config: c, stderr: stderr, killed: make(map[string]int)}
	for i := range 3 {
		f.instances = append(f.instances, &instance{name: fmt.Sprint("shop-", i+1)})
	}
	for _, i := range f.instances {
		if err := f.start(i); err != nil {
			return nil, errors.Join(err, f.close())
		}
	}
	return f, nil
}

// start starts a process. When it has said where it listens, it gets requests.
func (f *fleet) start(i *instance) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "-serve", "127.0.0.1:0", "-name", i.name, "-redis", f.redis, "-db", f.db, "-provider", f.provider,
		"-hold", f.hold.String(), "-lease", f.lease.String(), "-timeout", f.timeout.String(), "-sweep", f.sweep.String())
	cmd.Env = append(os.Environ(), instanceEnv+"=1")
	cmd.Stderr = f.stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot start %s: %w", i.name, err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	done := make(chan struct{})
	f.mu.Lock()
	defer f.mu.Unlock()
	i.addr, i.cmd, i.in, i.killed, i.done = strings.TrimSpace(line), cmd, in, false, done
	f.running.Go(func() { f.watch(i, cmd, done) })
	if f.closing {
		_ = in.Close()
	}
	if err != nil {
		return fmt.Errorf("%s did not start; -v shows why", i.name)
	}
	return nil
}

// watch waits until a process ends, and starts the next one.
func (f *fleet) watch(i *instance, cmd *exec.Cmd, done chan struct{}) {
	err := cmd.Wait()
	f.mu.Lock()
	i.addr = ""
	if err != nil && !i.killed && f.err == nil {
		f.err = fmt.Errorf("%s: %w", i.name, err)
	}
	again := !f.closing && f.err == nil
	f.mu.Unlock()
	close(done)
	if !again {
		return
	}
	if err := f.start(i); err != nil {
		f.mu.Lock()
		f.err = errors.Join(f.err, err)
		f.mu.Unlock()
	}
}

// stop stops an instance gracefully, out of the balancer first, and waits for it.
func (f *fleet) stop(i *instance) {
	f.mu.Lock()
	i.addr = ""
	in, done := i.in, i.done
	f.mu.Unlock()
	if in != nil {
		_ = in.Close()
		<-done
	}
}

// replace replaces one instance after the other, as a roll-out does. Each gets requests again before
// the next one stops.
func (f *fleet) replace(ctx context.Context) error {
	for _, i := range f.instances {
		f.stop(i)
		if err := until(ctx, func() (bool, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return i.addr != "", f.err
		}); err != nil {
			return err
		}
	}
	return nil
}

// close stops all instances gracefully. It returns what went wrong with any of them.
func (f *fleet) close() error {
	f.mu.Lock()
	f.closing = true
	f.mu.Unlock()
	var all sync.WaitGroup
	for _, i := range f.instances {
		all.Go(func() { f.stop(i) })
	}
	all.Wait()
	f.running.Wait()
	return f.err
}

// The moments at which an instance may be killed: these in turns, and some sweeps.
const (
	momentRequest  = "a request is on its way to it"
	momentAsked    = "it asks for a charge"
	momentCharged  = "the buyer is charged, and it does not know"
	momentAnswered = "it has just learned what became of the charge"
	momentClosed   = "its sweep has closed a charge, and does not know"
)

var moments = []string{momentRequest, momentAsked, momentCharged, momentAnswered}

// kill lets n instances be killed when their moments come.
func (f *fleet) kill(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kills += n
}

// quiet reports whether the killing of instances has ended.
func (f *fleet) quiet() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.kills == 0 || f.err != nil
}

// reached kills an instance with SIGKILL if this is the moment. It returns when the process is dead.
func (f *fleet) reached(moment, name string) (killed bool) {
	dead := f.strike(moment, name)
	if dead != nil {
		<-dead
	}
	return dead != nil
}

func (f *fleet) strike(moment, name string) (dead <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	wanted := moment == moments[f.next%len(moments)] && rand.N(8) == 0 // so that others get on
	if moment == momentClosed {
		wanted = !f.swept // so that the next sweep gets on
	}
	n := slices.IndexFunc(f.instances, func(i *instance) bool { return i.name == name && i.addr != "" && !i.killed })
	if f.kills == 0 || !wanted || n < 0 {
		return nil
	}
	victim := f.instances[n]
	_ = victim.cmd.Process.Kill()
	victim.killed = true
	f.kills--
	f.killed[moment]++
	if f.swept = moment == momentClosed; !f.swept {
		f.next++
	}
	return victim.done
}

// patience bounds each wait for a condition.
const patience = 2 * time.Minute

// until waits for a condition.
func until(ctx context.Context, met func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		if ok, err := met(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}
