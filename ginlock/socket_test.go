package ginlock_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
)

// accept opens a WebSocket as github.com/coder/websocket does: it writes the status, and then hijacks.
func accept(t *testing.T) gin.HandlerFunc {
	return func(c *gin.Context) {
		c.Header("Upgrade", "websocket")
		c.Header("Connection", "Upgrade")
		c.Writer.WriteHeader(http.StatusSwitchingProtocols)
		c.Writer.WriteHeaderNow()
		conn, rw, err := c.Writer.Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("hello")
		_ = rw.Flush()
	}
}

// The status before a hijacking is sent.
func TestWriter_StatusThenHijack(t *testing.T) {
	t.Parallel()
	l := idempotency.WithLocker(testutil.Locker(t))
	s := serve(t, func(r *gin.Engine) {
		r.GET("/without", accept(t))
		r.GET("/locked", ginlock.LockByKey("socket", l), accept(t))
		r.GET("/twice", ginlock.LockByKey("one", l), ginlock.LockByKey("two", l), accept(t))
		r.POST("/once", ginlock.ByHeader(idempotencyKey, l), accept(t))
	})
	for _, line := range []string{"GET /without", "GET /locked", "GET /twice", "POST /once"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(check.Patience))
		_, _ = fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 0\r\n%s: k\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", line, idempotencyKey)
		from := bufio.NewReader(conn)
		resp, err := http.ReadResponse(from, nil)
		if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
			t.Errorf("%s: %v, %v", line, resp, err)
			continue
		}
		if rest, err := io.ReadAll(from); string(rest) != "hello" {
			t.Errorf("%s: then %q, %v", line, rest, err)
		}
	}
}
