package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/rpc"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/onelane/onelane/testutil/internal/server"
)

const workers = 3

// A plan is all that chance decides about a trial. It follows from the seed, so it is the same for
// each library.
type plan struct {
	Hold    int           // which hold the fault strikes
	Point   string        // where in it
	Length  time.Duration // of the fault
	Masters int           // how many masters of a quorum restart
	Step    time.Duration // of a clock
	// Overtaken holders work until after the fault, and renew their lock. Others release it meanwhile.
	Overtaken bool
	Storm     [8]gust
}

// A gust is one of several faults of a storm. It strikes one worker.
type gust struct {
	Kind   string
	Worker int
	Length time.Duration
}

func newPlan(seed uint64, f fault) plan {
	chance := chanceOf(seed, f.name)
	p := plan{
		Hold:      2 + chance.IntN(4),
		Point:     atHeld,
		Length:    ttl*6/5 + time.Duration(chance.Int64N(int64(ttl))),
		Masters:   1 + chance.IntN(3),
		Step:      ttl + time.Duration(1+chance.IntN(30))*time.Second,
		Overtaken: chance.IntN(4) > 0,
	}
	if f.anywhere {
		p.Point = []string{atHeld, atRead, atWrite}[chance.IntN(3)]
	}
	if f.momentary {
		p.Length = 0
	}
	for i := range p.Storm {
		kinds := []string{"pause", "partition", "lost", "late"}
		p.Storm[i] = gust{kinds[chance.IntN(len(kinds))], chance.IntN(workers), ttl*3/4 + time.Duration(chance.Int64N(int64(ttl)))}
	}
	return p
}

// chanceOf returns a source of chance that is the same for the same seed and name.
func chanceOf(seed uint64, name string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// A fault is one thing that the nemesis does.
type fault struct {
	name, about string
	begin       func(*trial) error
	end         func(*trial) error
	// momentary faults have no length.
	momentary bool
	// anywhere is set if the fault strikes at any point of a hold. The holder waits for it.
	anywhere bool
	// atServers is set if a server suffers. Other trials must not share it.
	atServers bool
	// all is set if the fault strikes all workers.
	all bool
	// on are the topologies that have it; nil are all.
	on map[topology]bool
}

var faults = []fault{
	{name: "pause", about: "SIGSTOP of the holder for longer than the TTL, then SIGCONT", anywhere: true,
		begin: func(t *trial) error { return syscall.Kill(t.cmds[t.hit].Process.Pid, syscall.SIGSTOP) },
		end:   func(t *trial) error { return syscall.Kill(t.cmds[t.hit].Process.Pid, syscall.SIGCONT) }},
	{name: "kill", about: "SIGKILL of the holder", anywhere: true, momentary: true,
		begin: func(t *trial) error {
			err := t.cmds[t.hit].Process.Kill()
			_ = t.cmds[t.hit].Wait()
			t.referee.killed(t.hit, now())
			return err
		}},
	{name: "partition", about: "nothing passes between the holder and the servers for longer than the TTL; what was sent then arrives",
		begin: func(t *trial) error { t.set(t.hit, partitioned); return nil },
		end:   func(t *trial) error { t.set(t.hit, fair); return nil }},
	{name: "lost", about: "a third of all replies is lost: the connection ends after the server executed the request, or passes nothing any more",
		all:   true,
		begin: func(t *trial) error { t.setAll(losing); return nil },
		end:   func(t *trial) error { t.setAll(fair); return nil }},
	{name: "late", about: "half of all replies come late, by up to 1.5 TTL", all: true,
		begin: func(t *trial) error { t.setAll(late); return nil },
		end:   func(t *trial) error { t.setAll(fair); return nil }},
	{name: "restart", about: "the server is killed and restarted, Redis empty and the others with their data; of three masters one to three",
		momentary: true, atServers: true, all: true, begin: (*trial).restart},
	{name: "fail-over", about: "the Redis master is killed before its replica has the lock, and the replica is promoted; the leader of three etcd or ZooKeeper servers is killed",
		atServers: true, all: true, begin: (*trial).killLeader, end: (*trial).startLeader,
		on: map[topology]bool{oneRedis: true, oneEtcd: true, oneZooKeeper: true}},
	{name: "storm", about: "eight pauses, partitions, lost and late replies of single workers, each for 0.75 to 1.75 TTLs",
		momentary: true, all: true, begin: (*trial).storm},
	{name: "clock", about: "the server's clock steps forward by more than the TTL; of three masters that of one",
		momentary: true, atServers: true, all: true, begin: func(t *trial) error { return t.site.stepClock(t.plan.Step) },
		on: map[topology]bool{oneRedis: true, threeRedis: true, oneZooKeeper: true, onePostgres: true}},
}

// has reports whether a topology has the fault.
func (f fault) has(t topology) bool { return f.on == nil || f.on[t] }

// A trial is one library under one fault.
type trial struct {
	ctx     context.Context
	library library
	fault   fault
	plan    plan
	site    *site
	referee *referee
	cmds    []*exec.Cmd
	links   [][]*link // of each worker, to each server
	hit     int       // the worker that the fault struck
	over    chan error
	victim  *server.Server // of a fail-over
}

func runTrial(ctx context.Context, p *pool, l library, f fault, seed uint64) (history, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := &trial{ctx: ctx, library: l, fault: f, plan: newPlan(seed, f), referee: newReferee(), hit: -1, over: make(chan error, workers+2)}
	var err error
	if t.site, err = p.site(ctx, l.servers, f); err != nil {
		return history{}, err
	}
	if !t.site.shared {
		defer t.site.close()
	}
	t.referee.strike, t.referee.work = t.strike, t.work
	t.referee.failed = func(why string) { t.over <- errors.New(why) }
	defer t.close()
	key := fmt.Sprintf("torture:%s:%s:%d:%d", l.name, f.name, seed, now())
	for w := range workers {
		if err := t.startWorker(w, key, chanceOf(seed, fmt.Sprint(f.name, w))); err != nil {
			return history{}, err
		}
	}
	return t.wait(p.grace)
}

// wait waits for the fault, and for what comes after it.
func (t *trial) wait(grace time.Duration) (history, error) {
	select {
	case err := <-t.over:
		if err != nil {
			return history{}, err
		}
	case <-time.After(time.Minute):
		t.referee.mu.Lock()
		defer t.referee.mu.Unlock()
		return history{}, fmt.Errorf("the hold that the fault strikes was not reached in a minute: %q", t.referee.history.Refusals)
	case <-t.ctx.Done():
		return history{}, t.ctx.Err()
	}
	t.referee.await(ttl+grace, func(h *history) bool { return h.Holds[len(h.Holds)-1].takes(h.Healed) })
	// The worst may come from the struck holder, or a few holds later.
	t.referee.await(2*ttl, func(h *history) bool { return !h.Holds[t.plan.Hold].open })
	n := -1
	t.referee.await(time.Second, func(h *history) bool {
		if n < 0 {
			n = len(h.Holds)
		}
		return len(h.Holds) > n+5
	})
	return t.referee.finish(), nil
}

// work is how long a hold takes.
func (t *trial) work(hold int) time.Duration {
	switch {
	case t.fault.name == "storm": // so that it often strikes the holder
		return 400 * time.Millisecond
	case hold == t.plan.Hold && !t.fault.anywhere && t.plan.Overtaken:
		return t.plan.Length + ttl*3/2
	}
	return 30 * time.Millisecond
}

// strike begins the fault if a hold reaches the point of the plan.
func (t *trial) strike(worker, hold int, point string) {
	if t.fault.name == "fail-over" && t.site.replica != nil && hold == t.plan.Hold-1 && point == atHeld {
		if err := t.site.cutReplica(t.ctx); err != nil {
			t.over <- err
		}
	}
	if hold != t.plan.Hold || point != t.plan.Point {
		return
	}
	t.referee.mu.Lock()
	t.hit = worker
	t.referee.history.Hit, t.referee.history.Fault = worker, now()
	if t.fault.all {
		t.referee.history.Hit = -1
	}
	t.referee.mu.Unlock()
	begun := make(chan struct{})
	go func() {
		err := t.fault.begin(t)
		close(begun)
		if err == nil {
			time.Sleep(t.plan.Length)
			if t.fault.end != nil {
				err = t.fault.end(t)
			}
		}
		t.referee.mu.Lock()
		t.referee.history.Healed = now()
		t.referee.mu.Unlock()
		t.over <- err
	}()
	if t.fault.anywhere {
		<-begun
	}
}

func (t *trial) set(worker int, w weather) {
	for _, l := range t.links[worker] {
		l.set(w, ttl*3/2)
	}
}

func (t *trial) setAll(w weather) {
	for worker := range t.links {
		t.set(worker, w)
	}
}

// storm strikes one worker after the other.
func (t *trial) storm() (err error) {
	for _, g := range t.plan.Storm {
		pid := t.cmds[g.Worker].Process.Pid
		switch g.Kind {
		case "pause":
			err = syscall.Kill(pid, syscall.SIGSTOP)
		case "partition":
			t.set(g.Worker, partitioned)
		case "lost":
			t.set(g.Worker, losing)
		case "late":
			t.set(g.Worker, late)
		}
		time.Sleep(g.Length)
		t.set(g.Worker, fair)
		if err = errors.Join(err, syscall.Kill(pid, syscall.SIGCONT)); err != nil {
			return err
		}
	}
	return nil
}

// restart kills servers at once, and starts them again.
func (t *trial) restart() error {
	servers := t.site.servers[:min(t.plan.Masters, len(t.site.servers))]
	for _, s := range servers {
		s.Kill()
	}
	for _, s := range servers {
		if err := s.Restart(t.ctx); err != nil {
			return err
		}
	}
	return nil
}

// killLeader kills the master, and promotes its replica, or kills the leader.
func (t *trial) killLeader() (err error) {
	if t.site.replica == nil {
		if t.victim, err = t.site.leader(t.ctx, t.library.servers); err == nil {
			t.victim.Kill()
		}
		return err
	}
	// The replica may have the key of an earlier holder, who released it on the master alone.
	time.Sleep(ttl)
	t.site.servers[0].Kill()
	for _, links := range t.links {
		links[0].retarget(t.site.replica.Addr)
	}
	return nil
}

// startLeader starts the leader that was killed. A Redis master stays away.
func (t *trial) startLeader() error {
	if t.victim == nil {
		return nil
	}
	return t.victim.Restart(t.ctx)
}

// startWorker starts a process that takes the key again and again, behind its own links.
func (t *trial) startWorker(worker int, key string, coins *rand.Rand) error {
	var links []*link
	for _, s := range t.site.servers {
		l, err := newLink(s.Addr, rand.New(rand.NewPCG(coins.Uint64(), coins.Uint64())))
		if err != nil {
			return err
		}
		links = append(links, l)
	}
	t.links = append(t.links, links)
	binary, err := os.Executable()
	if err != nil {
		return err
	}
	args, err := json.Marshal(assignment{t.library.name, key, t.site.addrs(links)})
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(t.ctx, binary, workerCommand, string(args))
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	t.cmds = append(t.cmds, cmd)
	s := rpc.NewServer()
	if err := s.RegisterName("Referee", port{t.referee, worker}); err != nil {
		return err
	}
	go s.ServeConn(conn{out, in})
	return nil
}

func (t *trial) close() {
	for _, cmd := range t.cmds {
		_ = cmd.Process.Kill() // a stopped process dies, too
		_ = cmd.Wait()
	}
	for _, links := range t.links {
		for _, l := range links {
			l.close()
		}
	}
}
