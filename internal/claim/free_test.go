package claim_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/claim"
	"github.com/onelane/onelane/testutil/backendtest"
)

// A key is not freed before the process ends. The log says what a retry gets, and a retry gets that.
func TestFree_LogsWhatARetryGets(t *testing.T) {
	for setting, change := range map[string]change{"default": keep(24 * time.Hour), "run again": runAgain} {
		t.Run(setting, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var logged bytes.Buffer
				b := &outage{Sealer: backendtest.Memory()}
				l := newLocker(t, b, core.WithTTL(10*time.Second), core.WithLogger(slog.New(slog.NewTextHandler(&logged, nil))))
				c := newClaims(l, change)
				k := begin(t, c, "k", fp("a"))
				b.until = time.Now().Add(time.Hour)
				k.End(claim.Free, nil)
				k.Close()
				ended, end := context.WithCancel(t.Context())
				end()
				<-shutdown(ended)
				synctest.Wait()
				lines := strings.Count(logged.String(), "could not be freed")
				b.until = time.Time{}
				time.Sleep(time.Minute) // the lease is over
				out, err := ask(t.Context(), c, "k", fp("a"))
				consequence := "a retry runs when the lease has ended"
				switch {
				case out.Claim != nil:
					out.Claim.Close()
				case errors.Is(err, claim.ErrUnknown):
					consequence = "the outcome is unknown to a retry"
				default:
					t.Fatalf("a retry got %+v, %v", out, err)
				}
				if runs := out.Claim != nil; runs != (setting == "run again") {
					t.Errorf("a retry runs: %v, %v", runs, err)
				}
				if n := strings.Count(logged.String(), consequence); lines != 2 || n != lines {
					t.Errorf("%d of %d lines say that %s:\n%s", n, lines, consequence, &logged)
				}
			})
		})
	}
}
