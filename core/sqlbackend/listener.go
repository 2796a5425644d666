package sqlbackend

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"hash/fnv"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	firstListenPause   = time.Second // between connections that fail
	longestListenPause = 30 * time.Second
	closeTime          = time.Second
)

var (
	errDeaf  = errors.New("the driver is not pgx")
	errQuiet = errors.New("no connection listens now")
)

// listener wakes the waiters of a process on PostgreSQL, on one connection of the pool. It takes the
// connection when the first waiter comes, and keeps it until Close.
//
// It trusts a connection that has heard a probe. Behind a pooler that gives each transaction another
// connection, LISTEN succeeds and nothing is ever heard.
type listener struct {
	db      *sql.DB
	timeout time.Duration

	open    context.Context // until close
	stop    context.CancelFunc
	tried   chan struct{} // closed when the first connection hears or has failed
	trying  sync.Once
	running sync.WaitGroup

	mu       sync.Mutex
	started  bool
	deaf     bool // for good: waiters poll
	hears    bool
	watchers map[string]map[chan struct{}]bool // by what NOTIFY says of the key
}

func newListener(db *sql.DB, timeout time.Duration) *listener {
	l := &listener{db: db, timeout: timeout, tried: make(chan struct{}), watchers: make(map[string]map[chan struct{}]bool)}
	l.open, l.stop = context.WithCancel(context.Background())
	return l
}

// note is what NOTIFY says of a key. Two keys may have the same: their waiters look in vain.
func note(key string) string {
	h := fnv.New64a()
	h.Write([]byte(key))
	return strconv.FormatUint(h.Sum64(), 36)
}

// watch returns the signals for a key. There are none, and no error, if waiters must poll.
func (l *listener) watch(ctx context.Context, key string) (signals chan struct{}, stop func(), err error) {
	none := func() {}
	if !l.start() {
		return nil, none, nil
	}
	select {
	case <-l.tried:
	case <-ctx.Done():
		return nil, none, ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.deaf:
		return nil, none, nil
	case !l.hears:
		return nil, none, errQuiet
	}
	of := note(key)
	if l.watchers[of] == nil {
		l.watchers[of] = make(map[chan struct{}]bool)
	}
	signals = make(chan struct{}, 1)
	l.watchers[of][signals] = true
	return signals, func() { l.forget(of, signals) }, nil
}

// start begins to listen. It reports whether that may succeed.
func (l *listener) start() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.deaf || l.open.Err() != nil {
		return false
	}
	if !l.started && takeRoom(l.db) {
		l.started = true
		l.running.Go(func() {
			defer leaveRoom(l.db)
			l.run()
		})
	}
	return l.started
}

// rooms are how many listeners of this process each pool has.
var rooms = struct {
	mu    sync.Mutex
	taken map[*sql.DB]int
}{taken: make(map[*sql.DB]int)}

// takeRoom reports whether one more listener may have a connection of a pool. The statements need the
// last one.
func takeRoom(db *sql.DB) bool {
	rooms.mu.Lock()
	defer rooms.mu.Unlock()
	if most := db.Stats().MaxOpenConnections; most > 0 && rooms.taken[db] >= most-1 {
		return false
	}
	rooms.taken[db]++
	return true
}

func leaveRoom(db *sql.DB) {
	rooms.mu.Lock()
	defer rooms.mu.Unlock()
	if rooms.taken[db]--; rooms.taken[db] == 0 {
		delete(rooms.taken, db)
	}
}

// hearing reports whether signals come now.
func (l *listener) hearing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hears
}

func (l *listener) forget(of string, signals chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.watchers[of], signals)
	if len(l.watchers[of]) == 0 {
		delete(l.watchers, of)
	}
}

// close ends the connection and all watches.
func (l *listener) close() {
	l.mu.Lock()
	l.stop() // nothing starts after this
	l.mu.Unlock()
	l.running.Wait()
}

func (l *listener) run() {
	pause := firstListenPause
	for l.open.Err() == nil {
		heard, err := l.listen()
		l.silence(errors.Is(err, errDeaf))
		if errors.Is(err, errDeaf) {
			return
		}
		if heard {
			pause = firstListenPause
		}
		select {
		case <-time.After(pause):
		case <-l.open.Done():
		}
		pause = min(2*pause, longestListenPause)
	}
}

// listen takes a connection and hands out what it hears, until it fails. heard reports whether it was
// of any use.
func (l *listener) listen() (heard bool, err error) {
	ctx, cancel := context.WithTimeout(l.open, l.timeout)
	defer cancel()
	conn, err := l.db.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	_ = conn.Raw(func(raw any) error {
		c, ok := raw.(interface{ Conn() *pgx.Conn })
		if !ok {
			err = errDeaf
			return nil
		}
		if err = l.probe(ctx, c.Conn()); err == nil {
			heard = true
			err = l.hear(c.Conn())
		}
		// As it listens, it is of no use to others. A pool below database/sql would keep it.
		closing, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		_ = c.Conn().Close(closing)
		return driver.ErrBadConn
	})
	return heard, err
}

// probe checks that the connection hears what another one says.
func (l *listener) probe(ctx context.Context, c *pgx.Conn) error {
	if _, err := c.Exec(ctx, "LISTEN onelane_locks"); err != nil {
		return err
	}
	text := rand.Text()
	if _, err := l.db.ExecContext(ctx, "SELECT pg_notify('onelane_locks', $1)", text); err != nil {
		return err
	}
	for {
		n, err := c.WaitForNotification(ctx)
		if err != nil || n.Payload == text {
			return err
		}
	}
}

// hear hands out signals until the connection fails.
func (l *listener) hear(c *pgx.Conn) error {
	l.mu.Lock()
	l.hears = true
	l.mu.Unlock()
	l.trying.Do(func() { close(l.tried) })
	for {
		n, err := c.WaitForNotification(l.open)
		if err != nil {
			return err
		}
		l.signal(n.Payload)
	}
}

func (l *listener) signal(of string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for signals := range l.watchers[of] {
		select {
		case signals <- struct{}{}:
		default:
		}
	}
}

// silence ends all watches, because signals may be missed from now on.
func (l *listener) silence(deaf bool) {
	l.mu.Lock()
	l.hears, l.deaf = false, deaf
	for _, all := range l.watchers {
		for signals := range all {
			close(signals)
		}
	}
	clear(l.watchers)
	l.mu.Unlock()
	l.trying.Do(func() { close(l.tried) })
}
