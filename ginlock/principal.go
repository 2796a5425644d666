package ginlock

import (
	"fmt"

	"github.com/gin-gonic/gin"
)

// who returns the principal, "" for an anonymous caller.
func (m *middleware) who(c *gin.Context) (string, error) {
	if m.principal != nil {
		return m.principal(c), nil
	}
	user, ok := c.Get(gin.AuthUserKey)
	if !ok {
		m.shared.Do(func() {
			m.logger().Info("ginlock: no principal is known: all callers share one space of keys, and a retry must repeat the Authorization and Cookie headers; ginlock.Principal changes that", "route", c.FullPath())
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
