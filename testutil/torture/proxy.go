package main

import (
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// weather is what a link does to the bytes of its connections.
type weather int

const (
	// fair weather passes everything on.
	fair weather = iota
	// Nothing passes a partition. All that was sent arrives after it.
	partitioned
	// Some replies get lost. Their connections end, or pass nothing any more.
	losing
	// Some replies take longer than they should.
	late
)

// A link is a TCP proxy between one worker and one server.
type link struct {
	listener net.Listener

	// mu guards all that follows.
	mu      sync.Mutex
	changed *sync.Cond
	target  string
	weather weather
	coins   *rand.Rand
	slowest time.Duration // of a late reply
	pairs   map[*pair]struct{}
	closed  bool
}

// A pair is a connection of the client and the one to the server that belongs to it.
type pair struct {
	client, server net.Conn
	deaf           bool // what is sent is lost; guarded by the link
}

func (p *pair) close() {
	_ = p.client.Close()
	_ = p.server.Close()
}

// A chunk is what was read at once, and when it may be passed on.
type chunk struct {
	bytes []byte
	due   time.Time
}

func newLink(target string, coins *rand.Rand) (*link, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &link{listener: listener, target: target, coins: coins, pairs: make(map[*pair]struct{})}
	l.changed = sync.NewCond(&l.mu)
	go l.accept()
	return l, nil
}

func (l *link) addr() string { return l.listener.Addr().String() }

// set changes the weather. Connections that lost bytes end when it is fair again, as TCP never
// delivers what comes after a gap.
func (l *link) set(w weather, slowest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.weather, l.slowest = w, slowest
	for p := range l.pairs {
		if w == fair && p.deaf {
			p.close()
		}
	}
	l.changed.Broadcast()
}

// retarget sends later connections to another server, and ends those that there are.
func (l *link) retarget(target string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.target = target
	for p := range l.pairs {
		p.close()
	}
}

func (l *link) close() {
	_ = l.listener.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for p := range l.pairs {
		p.close()
	}
	l.changed.Broadcast()
}

func (l *link) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		go l.serve(client)
	}
}

func (l *link) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", l.await())
	if err != nil {
		return
	}
	p := &pair{client: client, server: server}
	defer p.close()
	l.mu.Lock()
	l.pairs[p] = struct{}{}
	closed := l.closed
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.pairs, p)
		l.mu.Unlock()
	}()
	if closed {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { l.pump(p, client, server, false) })
	both.Go(func() { l.pump(p, server, client, true) })
	both.Wait()
}

// await blocks while there is a partition, and returns the target.
func (l *link) await() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.weather == partitioned && !l.closed {
		l.changed.Wait()
	}
	return l.target
}

// pump passes on what one side sends, in its order.
func (l *link) pump(p *pair, from, to net.Conn, replies bool) {
	defer p.close()
	chunks := make(chan chunk, 1024)
	go func() {
		defer close(chunks)
		for {
			buffer := make([]byte, 16<<10)
			n, err := from.Read(buffer)
			if n > 0 {
				if delay, pass := l.judge(p, replies); pass {
					chunks <- chunk{buffer[:n], time.Now().Add(delay)}
				}
			}
			if err != nil {
				return
			}
		}
	}()
	for c := range chunks {
		time.Sleep(time.Until(c.due))
		l.await()
		if _, err := to.Write(c.bytes); err != nil {
			p.close()
			_, _ = io.Copy(io.Discard, from) // until the reader ends, too
			for range chunks {
			}
			return
		}
	}
}

// judge decides about one chunk: how long it takes, and whether it passes.
func (l *link) judge(p *pair, reply bool) (delay time.Duration, pass bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case p.deaf:
		return 0, false
	case l.weather == late && reply && l.coins.IntN(2) == 0:
		return time.Duration(l.coins.Int64N(int64(l.slowest))), true
	case l.weather == losing && reply && l.coins.IntN(3) == 0:
		if l.coins.IntN(2) == 0 {
			p.close() // the server has executed the request
		}
		p.deaf = true
		return 0, false
	}
	return 0, true
}
