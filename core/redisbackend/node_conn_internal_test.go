package redisbackend

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onelane/onelane/core/redisbackend/internal/driver"
)

// sending is a connection that connects at once and sends as a test says.
type sending func(commands []*command, end time.Time) error

func (s sending) Connect(context.Context) error                          { return nil }
func (s sending) Exec(commands []*command, end, callers time.Time) error { return s(commands, end) }
func (s sending) Disconnect()                                            {}
func (s sending) Close()                                                 {}

// Redis answers no call. A renewal is sent all the same.
func TestNodeConn_RenewalPassesCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan struct{})
		c := newNodeConn(nodeOf(sending(func(commands []*command, _ time.Time) error {
			if !commands[0].Renewal {
				<-answers
			}
			return nil
		})), newLatency(time.Minute), nil, callConnections)
		ctx, cancel := context.WithCancel(t.Context())
		for range 100 {
			go func() { _, _ = c.Do(ctx, driver.Plain("get", "k")) }()
		}
		synctest.Wait()
		renewal, began := driver.Plain("pexpire", "k", "1"), time.Now()
		renewal.Renewal = true
		if _, err := c.Do(t.Context(), renewal); err != nil || time.Since(began) > 0 {
			t.Errorf("the renewal took %v, with the error %v", time.Since(began), err)
		}
		cancel()
		close(answers)
		synctest.Wait()
		_ = c.Close()
	})
}

// A large value takes longer to send.
func TestNodeConn_LargeValueHasMoreTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var limits []time.Duration
		c := newNodeConn(nodeOf(sending(func(_ []*command, end time.Time) error {
			limits = append(limits, time.Until(end))
			return nil
		})), newLatency(time.Second), nil, 1)
		for _, size := range []int{0, 2 * slowestWrite} {
			seal := &command{Script: sealScript, Args: []string{strings.Repeat("v", size)}}
			if _, err := c.Do(t.Context(), seal); err != nil {
				t.Error(err)
			}
		}
		if len(limits) != 2 || limits[0] != time.Second || limits[1] < 2900*time.Millisecond {
			t.Errorf("the limits are %v", limits)
		}
		_ = c.Close()
	})
}
