package ginlock

import (
	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/idempotency"
)

// Fail answers for a handler that failed with err and did nothing else, and aborts the chain. See
// [idempotency.Fail].
func Fail(c *gin.Context, err error) {
	if err != nil {
		idempotency.Fail(c.Writer, c.Request, err)
		c.Abort()
	}
}
