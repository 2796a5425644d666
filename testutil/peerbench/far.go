package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

// far: one goroutine, and a network that delays each message.
func far(delay time.Duration) scenario {
	const trips = "× two round trips"
	return scenario{
		name: fmt.Sprintf("far-%v", delay),
		about: fmt.Sprintf("One goroutine locks and unlocks, and a proxy delays each message to and from Redis by %v. "+
			"A round trip is that of a PING over the same proxy, just before and just after.", delay),
		columns: []column{{"p50 ms", true}, {trips, true}},
		open: func(b *bench) ([]contender, error) {
			target, err := b.redis()
			if err != nil {
				return nil, err
			}
			proxy, err := newDelay(target, delay)
			if err != nil {
				return nil, err
			}
			client := redis.NewClient(&redis.Options{Addr: proxy.addr()})
			ping := func(ctx context.Context, d time.Duration) (float64, error) {
				t, err := load(ctx, d, 1, func(ctx context.Context, _ int) (time.Duration, error) {
					began := time.Now()
					err := client.Ping(ctx).Err()
					return time.Since(began), err
				})
				return t.wait(50), err
			}
			cs, err := lockers(peers, proxy.addr(), func(ctx context.Context, d time.Duration, l locker) (sample, error) {
				before, err1 := ping(ctx, d/4)
				t, err2 := load(ctx, d, 1, onOwnKey(l))
				after, err3 := ping(ctx, d/4)
				return sample{t.wait(50), t.wait(50) / (before + after)}, errors.Join(err1, err2, err3)
			})
			if len(cs) > 0 {
				closeFirst := cs[0].close
				cs[0].close = func() { closeFirst(); _ = client.Close(); proxy.close() }
			}
			return cs, err
		},
		targets: []target{{"p50 at most 1.03 × two round trips", func(r result) float64 { return r.of("onelane", trips) }, 0, 1.03}},
	}
}

// delaying is a proxy that passes everything on, a while later.
type delaying struct {
	net.Listener
	target string
	delay  time.Duration
}

func newDelay(target string, delay time.Duration) (*delaying, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &delaying{l, target, delay}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(c)
		}
	}()
	return p, nil
}

func (p *delaying) addr() string { return p.Addr().String() }

func (p *delaying) close() { _ = p.Close() }

func (p *delaying) serve(client net.Conn) {
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = client.Close()
		return
	}
	go p.pass(client, server)
	p.pass(server, client)
}

// pass copies from one side to the other. It closes both when one ends.
func (p *delaying) pass(from, to net.Conn) {
	type chunk struct {
		at   time.Time
		data []byte
	}
	chunks := make(chan chunk, 1024)
	go func() {
		defer to.Close()
		for c := range chunks {
			time.Sleep(time.Until(c.at.Add(p.delay)))
			if _, err := to.Write(c.data); err != nil {
				_ = from.Close()
			}
		}
	}()
	defer close(chunks)
	defer from.Close()
	for {
		buf := make([]byte, 4096)
		n, err := from.Read(buf)
		if n > 0 {
			chunks <- chunk{time.Now(), buf[:n]}
		}
		if err != nil {
			return
		}
	}
}
