package zkbackend

import (
	"errors"
	"fmt"
	"net"
	"path"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/loglimit"
)

const (
	defaultRoot    = "/onelane"
	defaultTimeout = 3 * time.Second
)

// Option configures a backend. A nil option is ignored; the later of two wins.
type Option func(*opener)

// WithRoot sets the node under which all keys are. The default is /onelane. The backend makes it if
// it is missing. Services that must not share locks need different roots. A chroot of ZooKeeper is
// the beginning of the root, for example /app/onelane.
func WithRoot(node string) Option { return func(o *opener) { o.root = node } }

// WithTimeout bounds each call, unless the call's context ends sooner. The default is 3 s.
func WithTimeout(d time.Duration) Option { return func(o *opener) { o.timeout = d } }

// WithAuth authenticates each connection, for example with "digest" and "user:password". Only this
// identity may then use the nodes that the backend makes. So all services that share locks must use
// the same identity. Without WithAuth the nodes are open to everybody, as is ZooKeeper's default.
// Without a scheme core.New returns an error.
func WithAuth(scheme, credentials string) Option {
	return func(o *opener) { o.identified, o.scheme, o.credentials = true, scheme, credentials }
}

// WithDialer makes the connections, for example with crypto/tls. The default is net.DialTimeout.
func WithDialer(dial zk.Dialer) Option { return func(o *opener) { o.dial = dial } }

// New returns the backend on the ZooKeeper ensemble of the servers. Each server is "host:port", or
// "host" with ZooKeeper's port 2181. The backend makes its own connection, to one server at a time.
// It connects at the first call and closes the connection with the Locker. A Release or a Seal
// after that makes another connection. Names are resolved again for each connection.
func New(servers []string, opts ...Option) core.Opener {
	o := &opener{servers: servers, root: defaultRoot, timeout: defaultTimeout, dial: net.DialTimeout}
	for _, option := range opts {
		if option != nil {
			option(o)
		}
	}
	return o
}

// opener is what New was called with.
type opener struct {
	servers             []string
	root                string
	timeout             time.Duration
	identified          bool // WithAuth was called
	scheme, credentials string
	dial                zk.Dialer
}

// Open implements core.Opener.
func (o *opener) Open(env core.Environment) (core.Backend, error) {
	if err := o.valid(); err != nil {
		return nil, fmt.Errorf("zkbackend: %w", err)
	}
	return newBackend(*o, loglimit.New(env.Logger)), nil
}

func (o *opener) valid() error {
	if len(o.servers) == 0 {
		return errors.New("New needs at least one server, such as \"zk1:2181\"")
	}
	for i, s := range zk.FormatServers(o.servers) {
		if address, chroot, found := strings.Cut(o.servers[i], "/"); found {
			return fmt.Errorf("server %d, %q, has a chroot, which is no part of an address: write %q and WithRoot(%q)",
				i+1, o.servers[i], address, path.Join("/", chroot, o.root))
		}
		if host, port, err := net.SplitHostPort(s); err != nil || host == "" || port == "" {
			return fmt.Errorf("server %d, %q, is not host:port", i+1, o.servers[i])
		}
	}
	if o.timeout <= 0 {
		return fmt.Errorf("time-out %v must be positive", o.timeout)
	}
	if o.identified && o.scheme == "" {
		return errors.New("WithAuth has no scheme, and the nodes would be open to everybody: pass one such as \"digest\", or omit the option")
	}
	if o.dial == nil {
		return errors.New("the dialer must not be nil")
	}
	for i, name := range strings.Split(o.root, "/") {
		if i == 0 && name != "" || i > 0 && (name == "" || escape(name) != name) {
			return fmt.Errorf("root %q must be a path such as %q: parts of letters, digits and %q", o.root, defaultRoot, plain)
		}
	}
	if !strings.HasPrefix(o.root, "/") {
		return fmt.Errorf("root %q must begin with a slash", o.root)
	}
	return nil
}
