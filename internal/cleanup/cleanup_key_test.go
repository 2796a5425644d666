package cleanup_test

import (
	"testing"
	"time"

	"github.com/onelane/onelane/internal/cleanup"
)

// The runbook says: free the key of this line with onelanectl release. onelanectl takes the key as
// the caller wrote it, and not the backend's name for it.
func TestQueue_LogsTheKeyOfTheCaller(t *testing.T) {
	run(t, false, func(t *testing.T, q *cleanup.Queue, s *server, l *log) {
		s.set(true, false)
		q.Add("onelane:{claim::ann:POST:shop:/pay/%7Bid%7D:Idempotency-Key:50%25}", time.Second, s.free("k"))
		time.Sleep(time.Hour)
		l.want(t, "gave up waiting=1 key=claim::ann:POST:shop:/pay/{id}:Idempotency-Key:50% error=the server is down")
	})
}
