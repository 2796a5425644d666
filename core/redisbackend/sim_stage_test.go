package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
)

// simStage is a simulated quorum on which a schedule happens step by step. No message is lost but
// those that the schedule cuts.
type simStage struct {
	w         *simWorld
	processes map[string]*quorum
	owners    int
}

// stage plays a schedule. It returns what went wrong, or nil.
func stage(t *testing.T, nodes int, off simRules, play func(*simStage) error) (err error) {
	synctest.Test(t, func(*testing.T) {
		s := &simStage{w: newSimWorld(1, nodes, off), processes: make(map[string]*quorum)}
		err = play(s)
		s.w.heal()
		time.Sleep(time.Minute)
	})
	return err
}

// as returns the quorum as a process sees it.
func (s *simStage) as(name string) *quorum {
	if s.processes[name] == nil {
		s.processes[name] = s.w.process(len(s.processes), 0)
	}
	return s.processes[name]
}

// ahead makes a process whose clock is wrong.
func (s *simStage) ahead(name string, by time.Duration) {
	s.processes[name] = s.w.process(len(s.processes), by)
}

// reach says which nodes a process reaches from now on. None are all.
func (s *simStage) reach(name string, nodes ...int) {
	q := s.as(name)
	process := q.nodes[0].conn.(*simConn).process
	s.w.do(func() {
		for i := range s.w.nodes {
			s.w.cut[[2]int{process, i}] = time.Now().Add(24 * time.Hour)
			if len(nodes) == 0 {
				delete(s.w.cut, [2]int{process, i})
			}
		}
		for _, i := range nodes {
			delete(s.w.cut, [2]int{process, i})
		}
	})
}

func (s *simStage) request(name string) core.Request {
	s.owners++
	return core.Request{Key: simKey, Owner: fmt.Sprintf("%s/%d", name, s.owners), TTL: simTTL}
}

// acquire makes a few attempts, as the engine does.
func (s *simStage) acquire(name string) (g core.Grant, err error) {
	for range 5 {
		if g, err = s.as(name).Acquire(context.Background(), s.request(name)); !errors.Is(err, core.ErrTaken) {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	return g, err
}

// must acquires a key that is free.
func (s *simStage) must(name string) core.Grant {
	g, err := s.acquire(name)
	if err != nil {
		panic(fmt.Sprintf("%s: %v", name, err))
	}
	return g
}

func (s *simStage) seal(name string, g core.Grant, value string) error {
	return s.as(name).Seal(context.Background(), g, []byte(value), time.Hour)
}

func (s *simStage) release(name string, g core.Grant) error {
	_, err := s.as(name).Release(context.Background(), g)
	return err
}

// sealed checks that a process gets the value of the seal.
func (s *simStage) sealed(name, value string) error {
	_, err := s.acquire(name)
	var sealed *core.SealedError
	if !errors.As(err, &sealed) || string(sealed.Value) != value {
		return fmt.Errorf("%s was told %v, want the seal %q", name, err, value)
	}
	return nil
}

// expire ends all leases and the requests that are under way.
func (s *simStage) expire() {
	time.Sleep(2 * simTTL)
	s.w.do(func() {
		for _, h := range s.w.nodes {
			delete(h.data, simKey)
		}
	})
}

func (s *simStage) down(nodes ...int) {
	s.w.do(func() {
		for _, i := range nodes {
			s.w.nodes[i].down = time.Now().Add(24 * time.Hour)
		}
	})
}

// up starts nodes with their data, and waits until they have a vote.
func (s *simStage) up(nodes ...int) {
	s.w.do(func() {
		for _, i := range nodes {
			s.w.nodes[i].down = time.Time{}
			s.w.nodes[i].restart(0)
		}
	})
	time.Sleep(3 * simTTL)
}

// empty restarts a node without its data.
func (s *simStage) empty(node int) {
	s.w.strike(simFault{kind: nodeIsEmpty, node: node})
}

// run runs a script on one node, as a late or a repeated message.
func (s *simStage) run(node int, sc *script, args ...any) (status int64) {
	keys := []string{simKey, companion(simKey, "ballot"), companion(simKey, "accepted")}
	argv := make([]string, len(args))
	for i, a := range args {
		argv[i] = fmt.Sprint(a)
	}
	s.w.do(func() { status = s.w.nodes[node].run(sc, keys, argv)[0].(int64) })
	return status
}

func (s *simStage) prepare(node int, owner string, ballot uint64) int64 {
	return s.run(node, quorumPrepareScript, owner, ballot, 60_000, 0, "")
}

func (s *simStage) accept(node int, owner string, at stamp, value, mode string) int64 {
	return s.run(node, quorumAcceptScript, owner, at.ballot, at.step, value, 3_600_000, 60_000, mode, 0, "")
}

// ballot returns what a node promised.
func (s *simStage) ballot(node int) (b uint64) {
	s.w.do(func() {
		promise, _ := s.w.nodes[node].get(companion(simKey, "ballot"))
		_, _ = fmt.Sscan(promise, &b)
	})
	return b
}
