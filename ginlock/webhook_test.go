package ginlock_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/ginlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil/backendtest"
)

// Alipay's schedule, with the options of ExampleByKey. The first answer is lost. Each try has
// the time at which it was sent.
func TestWebhook_OptionsOfTheExample(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := check.Locker(t, backendtest.Memory())
		booked := 0
		r := gin.New()
		idAlone := idempotency.Fingerprint(func(*http.Request, []byte) []byte { return nil })
		once := ginlock.ByKey("{json.id}", idempotency.WithLocker(l), idAlone, idempotency.Retain(7*24*time.Hour))
		r.POST("/webhook", once, func(c *gin.Context) {
			booked++
			c.Status(http.StatusNoContent)
		})
		for try, pause := range []time.Duration{0, 4 * time.Minute, 10 * time.Minute, 10 * time.Minute, time.Hour, 2 * time.Hour, 6 * time.Hour, 15 * time.Hour} {
			time.Sleep(pause)
			got := code(send(r, "POST", "/webhook", fmt.Sprintf(`{"id":"n-1","notify_time":%d}`, time.Now().Unix())))
			if got != "204" {
				t.Errorf("try %d is answered %s", try, got)
			}
		}
		if booked != 1 {
			t.Errorf("one payment was booked %d times", booked)
		}
	})
}
