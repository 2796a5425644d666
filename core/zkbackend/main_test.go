package zkbackend_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/zkbackend"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/internal/ownertext"
	"github.com/onelane/onelane/internal/pausetest"
	"github.com/onelane/onelane/testutil"
)

var ok, want, eventually, locker = check.OK, check.Want, check.Eventually, check.Locker

// patience bounds each wait for a condition.
const patience = check.Patience

func TestMain(m *testing.M) {
	if pausetest.Child(atAddress) {
		return
	}
	check.Parallel(4)
	check.Main(withShared{m})
}

// withShared runs the tests and then ends the server that they share.
type withShared struct{ *testing.M }

func (m withShared) Run() int {
	defer func() {
		for _, end := range forAll.ends {
			end()
		}
	}()
	return m.M.Run()
}

// forAll stands for all tests.
var forAll = &allTests{}

type allTests struct {
	testing.TB
	ends []func()
}

func (a *allTests) Helper()                        {}
func (a *allTests) Cleanup(end func())             { a.ends = append(a.ends, end) }
func (a *allTests) Fatalf(format string, v ...any) { panic(fmt.Sprintf(format, v...)) }

var sharedNode = sync.OnceValue(func() *testutil.ZooKeeperNode { return testutil.ZooKeeper(forAll) })

// shared is a server for tests that leave it as it is, each below its own root.
func shared(t testing.TB) *testutil.ZooKeeperNode {
	t.Helper()
	return sharedNode()
}

// roots has the root of each test that has asked for it.
var roots sync.Map

// rootOf returns a root that no other run of the test has, so that a test may leave keys there.
func rootOf(t testing.TB) string {
	name := strings.ReplaceAll(t.Name(), "/", "-")
	root, _ := roots.LoadOrStore(t, fmt.Sprintf("/%s-%d", name, time.Now().UnixNano()))
	return root.(string)
}

// at is the backend below the test's root. It is patient with a busy machine: its time-out is long,
// and so is its session.
func at(t testing.TB, addr string, opts ...zkbackend.Option) core.Opener {
	return zkbackend.New([]string{addr}, append([]zkbackend.Option{zkbackend.WithRoot(rootOf(t)),
		zkbackend.WithTimeout(10 * time.Second), zkbackend.WithDialer(dialPatiently)}, opts...)...)
}

// dialPatiently makes connections that outlast a pause of the server or of the test.
func dialPatiently(network, addr string, timeout time.Duration) (net.Conn, error) {
	c, err := net.DialTimeout(network, addr, timeout)
	if err != nil {
		return nil, err
	}
	return &patientConn{Conn: c}, nil
}

type patientConn struct {
	net.Conn
	begun bool
}

func (c *patientConn) SetReadDeadline(end time.Time) error {
	if !end.IsZero() {
		end = end.Add(patience)
	}
	return c.Conn.SetReadDeadline(end)
}

// Write asks for a longer session in the first message. The server decides with it when the client
// is gone, and the library when the server is.
func (c *patientConn) Write(b []byte) (int, error) {
	const length = 16 // of the session in ms: where it is
	if !c.begun && len(b) >= length+4 {
		binary.BigEndian.PutUint32(b[length:], uint32(patience.Milliseconds()))
	}
	c.begun = true
	return c.Conn.Write(b)
}

var quiet = slog.New(slog.DiscardHandler)

// open returns a backend that is closed with the test.
func open(t testing.TB, o core.Opener) core.Sealer {
	t.Helper()
	b, err := o.Open(core.Environment{
		TTL: 10 * time.Second, Logger: quiet, Meter: noop.Meter{},
	})
	ok(t, "Open", err)
	t.Cleanup(func() { ok(t, "Close", b.Close()) })
	return b.(core.Sealer)
}

// request asks for a lease in a new owner's name.
func request(key string, ttl time.Duration) core.Request {
	return core.Request{Key: key, Owner: ownertext.New("test", "", 0), TTL: ttl}
}

// acquire gets the lock. On a busy machine a short lease may end before the answer comes. Then another
// owner asks again.
func acquire(t testing.TB, b core.Backend, r core.Request) (g core.Grant) {
	t.Helper()
	eventually(t, "Acquire", func() bool {
		var err error
		g, err = b.Acquire(t.Context(), r)
		r.Owner = request(r.Key, r.TTL).Owner
		return err == nil
	})
	return g
}

func isUnavailable(err error) bool { return errors.Is(err, core.ErrUnavailable) }

// client is a separate session, to look at nodes.
func client(t testing.TB, addr string) *zk.Conn {
	t.Helper()
	c, events, err := zk.Connect([]string{addr}, 10*time.Second, zk.WithLogInfo(false))
	ok(t, "Connect", err)
	t.Cleanup(func() {
		c.Close()
		for range events {
		}
	})
	return c
}

// keyNodes are the nodes of keys, and those below them.
func keyNodes(t testing.TB, addr, root string) (found []string) {
	t.Helper()
	c, events, err := zk.Connect([]string{addr}, 10*time.Second, zk.WithLogInfo(false))
	ok(t, "Connect", err)
	defer func() {
		c.Close()
		for range events {
		}
	}()
	var walk func(path string, depth int)
	walk = func(path string, depth int) {
		names, _, err := c.Children(path)
		if errors.Is(err, zk.ErrNoNode) {
			return
		}
		ok(t, "Children", err)
		for _, name := range names {
			if depth > 0 {
				found = append(found, path+"/"+name)
			}
			walk(path+"/"+name, depth+1)
		}
	}
	walk(root, 0)
	return found
}
