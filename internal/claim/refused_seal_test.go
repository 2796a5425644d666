package claim_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/claim"
	"github.com/onelane/onelane/testutil/backendtest"
)

// smallSeals takes only seals of up to a size, as etcd does.
type smallSeals struct {
	outage
	size int
}

func (b *smallSeals) Open(core.Environment) (core.Backend, error) { return b, nil }

func (b *smallSeals) Seal(ctx context.Context, g core.Grant, value []byte, retention time.Duration) error {
	if err := b.hang(ctx, g.Key); err != nil {
		return err
	}
	if len(value) > b.size {
		return errors.New("the value is too large")
	}
	return b.Sealer.Seal(ctx, g, value, retention)
}

// A record that the backend refuses leaves a tombstone: the request was answered and must not run again.
func TestComplete_RefusedByTheBackend(t *testing.T) {
	for name, tc := range map[string]struct {
		size int
		out  time.Duration
		want error
	}{
		"a tombstone is small enough": {size: 1000},
		"after an outage":             {size: 1000, out: 3 * time.Second},
		"nothing is small enough":     {want: claim.ErrUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			for setting, change := range map[string]change{"default": keep(24 * time.Hour), "run again": runAgain} {
				synctest.Test(t, func(t *testing.T) {
					b := &smallSeals{outage: outage{Sealer: backendtest.Memory()}, size: tc.size}
					c := newClaims(newLocker(t, b), change)
					k := begin(t, c, "k", fp("a"))
					b.until = time.Now().Add(tc.out)
					if err := k.Complete(record(string(make([]byte, 2000)))); err == nil {
						t.Errorf("%s: Complete: no error", setting)
					}
					k.Close()
					ok(t, "Shutdown", <-shutdown(context.Background()))
					time.Sleep(time.Minute) // the lease is over
					out, err := ask(t.Context(), c, "k", fp("a"))
					switch {
					case out.Claim != nil:
						out.Claim.Close()
						if tc.want == nil || setting == "default" {
							t.Errorf("%s: a retry runs", setting)
						}
					case tc.want == nil && (err != nil || out.Replay == nil || !out.Replay.NotKept):
						t.Errorf("%s: a retry got %+v, %v; want a tombstone", setting, out.Replay, err)
					case !errors.Is(err, tc.want):
						t.Errorf("%s: a retry got %v, want %v", setting, err, tc.want)
					}
					time.Sleep(time.Minute) // clean-ups end
				})
			}
		})
	}
}
