package etcdbackend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/onelane/onelane/core"
)

// bound returns a context for one verb.
func (b *backend) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, b.timeout)
}

// tries is how many tries fit into the time-out of a verb. So a member that hangs does not use up
// the whole time-out.
const tries = 4

// oneTry returns a context for one request.
func (b *backend) oneTry(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, b.timeout/tries)
}

const (
	firstPause   = 10 * time.Millisecond
	longestPause = 200 * time.Millisecond
)

// Until ctx ends, retry repeats a request whose outcome is unknown. The client sends each try to
// another member. A late effect of an earlier try must do no harm.
func (b *backend) retry(ctx context.Context, key string, request func(context.Context) error) error {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		one, cancel := b.oneTry(ctx)
		err := request(one)
		cancel()
		if err == nil {
			return nil
		}
		failed := b.failed(ctx, key, err)
		if ctx.Err() != nil || failed.Permanent || definite(err) {
			return failed
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return b.failed(ctx, key, err)
		}
	}
}

// definite reports whether an error is final, so that repeating the request does not help.
func definite(err error) bool {
	return errors.Is(err, rpctypes.ErrLeaseNotFound) || errors.Is(err, rpctypes.ErrNoSpace) ||
		errors.Is(err, clientv3.ErrNoAvailableEndpoints)
}

// advice says what to do about errors of etcd.
var advice = []struct {
	err  error
	text string
}{
	{rpctypes.ErrNoSpace, "etcd has raised its NOSPACE alarm; compact and defragment it, " +
		"then run etcdctl alarm disarm"},
	{rpctypes.ErrRequestTooLarge, "raise etcd's --max-request-bytes or seal a smaller value"},
	{rpctypes.ErrPermissionDenied,
		"give etcd's user read and write permission on the prefix of the keys (core.WithPrefix)"},
	{rpctypes.ErrAuthFailed, "check the client's Username and Password"},
	{rpctypes.ErrUserEmpty, "set the client's Username and Password"},
	{rpctypes.ErrNoLeader, "a majority of etcd's members must run and reach each other"},
}

// failed returns the error of a request.
func (b *backend) failed(ctx context.Context, key string, err error) *core.UnavailableError {
	conn := b.client.ActiveConnection() // nil for the client of an embedded etcd
	unconnected := conn != nil && isTimeout(err) && conn.GetState() != connectivity.Ready
	switch {
	case ctx.Err() == nil && isTimeout(err):
		err = fmt.Errorf("etcd did not answer within %v; look at the servers, or raise WithTimeout", b.timeout/tries)
	case isTimeout(err) && errors.Is(ctx.Err(), context.DeadlineExceeded):
		err = fmt.Errorf("etcd did not answer in time: %w", ctx.Err())
	case ctx.Err() != nil && !errors.Is(err, ctx.Err()):
		err = fmt.Errorf("%w (%w)", ctx.Err(), err)
	}
	if unconnected {
		err = fmt.Errorf("%w; the client has no connection: check its Endpoints and TLS", err)
	}
	for _, a := range advice {
		if errors.Is(err, a.err) {
			err = fmt.Errorf("%w: %s", err, a.text)
			break
		}
	}
	u := unavailable(key, err)
	u.Permanent = permanent(err)
	return u
}

func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || code(err) == codes.DeadlineExceeded
}

// permanent reports whether trying again cannot help.
func permanent(err error) bool {
	switch code(err) {
	case codes.PermissionDenied, codes.InvalidArgument, codes.Unauthenticated, codes.Unimplemented:
		return true
	}
	return false
}

func code(err error) codes.Code {
	if e, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return e.Code()
	}
	return status.Code(err)
}

func unavailable(key string, err error) *core.UnavailableError {
	return &core.UnavailableError{Key: key, Nodes: []error{err}}
}
