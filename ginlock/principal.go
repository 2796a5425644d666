package ginlock

import (
	"crypto/sha256"
	"fmt"
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
			m.logger().Info("ginlock: no principal is known: all callers share one space of keys, and a retry must come with the same credentials; ginlock.Principal changes that", "route", c.FullPath())
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

// credentials is a digest of what a request says of who asks: Authorization and Cookie, X-Api-Key, and a verified client certificate.
func credentials(r *http.Request) [sha256.Size]byte {
	sum := idempotency.Credentials(r.Header["Authorization"], r.Header["Cookie"], r.Header["X-Api-Key"])
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		sum = idempotency.Digest(sum[:], []byte("TLS"), r.TLS.VerifiedChains[0][0].Raw)
	}
	return sum
}
