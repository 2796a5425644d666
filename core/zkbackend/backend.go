package zkbackend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/cleanup"
	"github.com/onelane/onelane/internal/leases"
)

// maxCalls is how many requests may be under way.
const maxCalls = 1024

// backend is the core.Backend on ZooKeeper.
type backend struct {
	opener
	acl       []zk.ACL
	logger    *slog.Logger
	sightings leases.Sightings
	clock     clock
	watches   watches
	slots     chan struct{} // one for each request under way
	turns     servers       // which server is next

	open context.Context // until Close
	stop context.CancelFunc

	auth   sync.Mutex
	authed bool

	mu       sync.Mutex
	closing  bool // holders' last calls go to the field after
	closed   bool // no more requests begin
	conn     *zk.Conn
	events   <-chan zk.Event
	line     net.Conn       // of the latest connection
	work     sync.WaitGroup // requests, the sweep
	cleaning *cleanup.Queue
	after    *backend // for the last calls of holders after Close
	lasting  int      // how many of those calls are under way
}

func newBackend(o opener, logger *slog.Logger) *backend {
	b := &backend{opener: o, logger: logger, acl: zk.WorldACL(zk.PermAll), slots: make(chan struct{}, maxCalls)}
	if o.scheme != "" {
		b.acl = zk.AuthACL(zk.PermAll)
	}
	b.cleaning = newCleaning(logger)
	b.watches.paths = make(map[string]*watch)
	b.open, b.stop = context.WithCancel(context.Background())
	return b
}

// Close implements core.Backend. It gives clean-ups a second, and then ends the session. It also
// waits for requests that have no answer yet, because they may need a clean-up.
func (b *backend) Close() error {
	b.mu.Lock()
	if b.closing {
		b.mu.Unlock()
		return nil
	}
	b.closing = true
	b.mu.Unlock()
	b.cleaning.Close(cleanup.CloseGrace)
	b.stop()
	b.mu.Lock()
	b.closed = true
	conn, line, events := b.conn, b.line, b.events
	b.mu.Unlock()
	if conn == nil {
		return nil
	}
	conn.Close()
	if line != nil {
		_ = line.Close() // the library would wait for a server that hangs
	}
	for range events { // until the library has ended
	}
	b.work.Wait()
	return nil
}

// last returns the backend for the last call of a holder, and a function to call after it. Close
// waits for the call. When Close has begun, last returns another backend, whose session ends when
// nobody needs it.
func (b *backend) last() (use *backend, done func(context.Context)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closing {
		settled := b.cleaning.Expect()
		return b, func(context.Context) { settled() }
	}
	if b.after == nil {
		b.after = newBackend(b.opener, b.logger)
	}
	b.lasting++
	return b.after, b.lastDone
}

func (b *backend) lastDone(ctx context.Context) {
	b.mu.Lock()
	after := b.after
	if b.lasting--; b.lasting > 0 {
		b.mu.Unlock()
		return
	}
	b.after = nil
	b.mu.Unlock()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = after.Close()
	}()
	select {
	case <-closed:
	case <-ctx.Done():
	}
}

var errNoAnswer = errors.New("no answer in time")

// begin bounds a call by the backend's own time-out.
func (b *backend) begin(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, b.timeout, errNoAnswer)
}

// do makes one request and returns when it was answered or ctx ended. It is needed because the
// library's requests take no context. If the request may have had an effect that do cannot return,
// do calls unsure, unless unsure is nil.
func do[T any](ctx context.Context, b *backend, request func(*zk.Conn) (T, error), unsure func()) (T, error) {
	type answer struct {
		value T
		err   error
	}
	if ctx.Err() != nil {
		return answer{}.value, b.ended(ctx)
	}
	select {
	case b.slots <- struct{}{}:
	case <-ctx.Done():
		return answer{}.value, b.ended(ctx)
	}
	settled := func() {}
	if unsure != nil {
		settled = b.cleaning.Expect()
	}
	answers, left := make(chan answer), make(chan struct{})
	started := b.spawn(func() {
		defer settled()
		var a answer
		conn, err := b.connected()
		asked := err == nil
		if asked {
			a.value, err = request(conn)
		}
		a.err = err
		<-b.slots
		late := false
		select {
		case answers <- a:
		case <-left:
			late = true
		}
		if unsure != nil && asked && (late && err == nil || err != nil && unknown(err)) {
			unsure()
		}
	})
	if !started {
		settled()
		<-b.slots
		return answer{}.value, zk.ErrClosing
	}
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
		close(left)
		return answer{}.value, b.ended(ctx)
	}
}

// spawn runs fn in a goroutine that Close waits for. It reports whether the backend is open.
func (b *backend) spawn(fn func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.work.Go(fn)
	return true
}

// ended returns the error of a call that ctx ended.
func (b *backend) ended(ctx context.Context) error {
	if context.Cause(ctx) == errNoAnswer {
		return fmt.Errorf("zkbackend: ZooKeeper at %s did not answer within %v; look at the servers, or raise WithTimeout", strings.Join(b.servers, ", "), b.timeout)
	}
	return ctx.Err()
}

// unavailable returns the error of a call that ZooKeeper did not decide.
func unavailable(key string, err error) error {
	if errors.Is(err, core.ErrInvalidKey) {
		return err
	}
	forbidden := errors.Is(err, zk.ErrNoAuth) || errors.Is(err, zk.ErrAuthFailed) || errors.Is(err, zk.ErrInvalidACL)
	if forbidden {
		err = fmt.Errorf("zkbackend: ZooKeeper forbids the request; check WithAuth and the ACLs of the root: %w", err)
	}
	return &core.UnavailableError{Key: key, Nodes: []error{err}, Permanent: forbidden}
}

// conflict reports whether a change was refused because the nodes are not as they were.
func conflict(err error) bool {
	return errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrNodeExists) || errors.Is(err, zk.ErrBadVersion) ||
		errors.Is(err, zk.ErrNotEmpty)
}

// unknown reports whether a change that failed may have had its effect, or may have it later.
func unknown(err error) bool {
	return !conflict(err) && !errors.Is(err, zk.ErrNoServer) && !errors.Is(err, zk.ErrNoAuth) &&
		!errors.Is(err, zk.ErrInvalidACL)
}

// Ping implements core.Backend. It asks for a decision of the majority, which changes nothing.
func (b *backend) Ping(ctx context.Context) error {
	ctx, cancel := b.begin(ctx)
	defer cancel()
	_, err := b.multi(ctx, nil, &zk.CheckVersionRequest{Path: b.root, Version: -1})
	if err != nil && !errors.Is(err, zk.ErrNoNode) { // the root is made with the first key
		return unavailable("", err)
	}
	return nil
}
