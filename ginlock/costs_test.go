package ginlock_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil/backendtest"
)

// The allocations of a request are counted beside those of its handler, with a backend in memory.
// BenchmarkMiddleware compares with a middleware that is written by hand. The test is not parallel: it
// measures the whole process.
func TestCosts_Allocations(t *testing.T) {
	l, err := core.New(backendtest.Memory())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	r := gin.New()
	answer := func(c *gin.Context) {
		_, _ = c.GetRawData()
		c.Data(201, "application/json", []byte(`{"order":1}`))
	}
	r.POST("/bare", answer)
	r.POST("/orders", ginlock.ByHeader(idempotencyKey, idempotency.WithLocker(l)), answer)
	send := func(path, key string) {
		req, err := http.NewRequest("POST", path, strings.NewReader(`{"sku":1}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header[idempotencyKey] = []string{key}
		w := sink{header: make(http.Header)}
		if r.ServeHTTP(&w, req); w.status != 201 {
			t.Fatal(w.status)
		}
	}
	n := 0
	fresh := func(path string) func() {
		return func() {
			n++
			send(path, "key-"+strconv.Itoa(n))
		}
	}
	const runs = 1000
	bare := testing.AllocsPerRun(runs, fresh("/bare"))
	first := testing.AllocsPerRun(runs, fresh("/orders")) - bare
	replayed := testing.AllocsPerRun(runs, func() { send("/orders", "key-"+strconv.Itoa(n)) }) - bare
	t.Logf("beside the %v of the handler and the test: %v allocations fresh, %v replayed", bare, first, replayed)
	if check.Race {
		return
	}
	if most := 62.0; first > most {
		t.Errorf("a fresh request allocates %v times, want at most %v", first, most)
	}
	if most := 38.0; replayed > most {
		t.Errorf("a replayed request allocates %v times, want at most %v", replayed, most)
	}
}
