package rueidisdriver

import (
	"errors"
	"testing"

	"github.com/onelane/onelane/core/redisbackend/internal/driver"
)

// Rueidis leaves the code ERR out, by which the backend knows what a server cannot do.
func TestReplyError(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]driver.ReplyError{
		"syntax error":            "ERR syntax error",
		"unknown command 'delex'": "ERR unknown command 'delex'",
		"NOSCRIPT No matching":    "NOSCRIPT No matching",
		"MOVED 1 127.0.0.1:1":     "MOVED 1 127.0.0.1:1",
		"":                        "ERR ",
		"WRONGTYPE Operation":     "WRONGTYPE Operation",
	} {
		if got := replyError(errors.New(text)); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}
