package ginlock_test

import (
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil/backendtest"
)

// played answers as a text of operations says, two bytes each, and returns what the handler saw of the writer. Without
// statuses that allow no body: httptest's recorder knows none.
func played(c *gin.Context, ops []byte) (seen []string) {
	for ; len(ops) > 1; ops = ops[2:] {
		n, result := int(ops[1]), ""
		switch ops[0] % 11 {
		case 0:
			c.Status([]int{200, 201, 206, 400, 404, 410, 500, 503}[n%8])
		case 1:
			result = fmt.Sprint(c.Writer.Write(make([]byte, n%6)))
		case 2:
			result = fmt.Sprint(c.Writer.WriteString(strings.Repeat("b", n%20)))
		case 3:
			c.Writer.Flush()
		case 4:
			c.Writer.WriteHeaderNow()
		case 5:
			c.Header("Etag", fmt.Sprint(n%3))
		case 6:
			c.Writer.Header().Del("Etag")
		case 7:
			c.Writer.Header().Add("Vary", "A")
		case 8:
			c.JSON(200+n%2, gin.H{"a": n})
		case 9:
			c.AbortWithStatus(400 + n%10)
		case 10:
			c.Redirect(303, "/x")
		}
		seen = append(seen, fmt.Sprint(ops[0]%11, " ", result, " ", c.Writer.Status(), c.Writer.Written(), c.Writer.Size()))
	}
	return seen
}

// A handler may do anything with its writer. It and its client see what they see without the
// middleware, and the replay is the same again.
func FuzzWriter(f *testing.F) {
	l, err := core.New(backendtest.Memory())
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = l.Close() })
	random := rand.NewChaCha8([32]byte{})
	for range 300 {
		ops := make([]byte, 2+random.Uint64()%14)
		_, _ = random.Read(ops)
		f.Add(ops)
	}
	f.Fuzz(func(t *testing.T, ops []byte) {
		key := rand.Uint64()
		var seen []string
		ask := func(use ...gin.HandlerFunc) (text string, replayed bool) {
			r := gin.New()
			r.Use(func(c *gin.Context) { c.Header("Etag", "outer"); c.Header("Vary", "O") })
			r.POST("/orders", append(use, func(c *gin.Context) { seen = played(c, ops) })...)
			req := httptest.NewRequest("POST", "/orders", strings.NewReader("{}"))
			req.Header.Set(idempotencyKey, fmt.Sprint(key))
			w := httptest.NewRecorder()
			r.ServeHTTP(w, req)
			h := w.Result().Header
			replayed = h.Get("Idempotency-Replayed") != ""
			h.Del("Idempotency-Replayed")
			return fmt.Sprint(w.Code, h, " ", w.Body), replayed
		}
		once := ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l), idempotency.MaxBody(24))
		want, _ := ask()
		told := seen
		if got, _ := ask(once); got != want || !slices.Equal(seen, told) {
			t.Fatalf("the client gets %q, and %q without the middleware; the handler saw %q and %q", got, want, seen, told)
		}
		if got, replayed := ask(once); replayed && got != want {
			t.Fatalf("the replay is %q, the first was %q", got, want)
		}
	})
}
