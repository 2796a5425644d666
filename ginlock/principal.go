package ginlock

import (
	"fmt"
	"log/slog"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/idempotency"
)

// who returns the principal, "" for an anonymous caller.
func (m *middleware) who(c *gin.Context) (string, error) {
	if m.principal != nil {
		return m.principal(c), nil
	}
	user, ok := c.Get(gin.AuthUserKey)
	if !ok {
		m.shared.Do(func() {
			slog.Info("ginlock: no principal is known: all callers share one space of keys, and a retry must repeat the Authorization and Cookie headers; ginlock.Principal changes that", "route", c.FullPath())
		})
		return "", nil
	}
	name, ok := user.(string)
	if !ok || name == "" {
		// A formatted value could be another text at the next request, and the request would run twice.
		return "", fmt.Errorf("ginlock: gin.AuthUserKey holds a %T, not a name", user)
	}
	return name, nil
}

// credentials is a digest of the headers that say who asks.
func credentials(h http.Header) [32]byte {
	var parts [][]byte
	for _, name := range []string{"Authorization", "Cookie"} {
		parts = append(parts, []byte(name))
		for _, v := range h[name] {
			parts = append(parts, []byte(v))
		}
	}
	return idempotency.Digest(parts...)
}
