package ginlock

import (
	"context"
	"errors"
	"log/slog"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/core"
)

// serveLocked runs a request under a lock.
func (m *middleware) serveLocked(c *gin.Context, l *core.Locker, key string) {
	name := m.lock(c, key)
	if m.principal != nil && !m.byCaller {
		name += ":" + core.Join(m.principal(c)) // joined: other values make another name
	}
	k, err := m.acquire(c.Request.Context(), l, name)
	switch {
	case err == nil:
		m.runLocked(c, k)
	case errors.Is(err, core.ErrInvalidKey):
		m.log(c, slog.LevelWarn, "ginlock: a lock's key is refused", err)
		m.refuseKey(c, errLong)
	case m.runUnprotected(c, err):
	default:
		m.refuseErr(c, err)
	}
}

func (m *middleware) acquire(ctx context.Context, l *core.Locker, key string) (*core.Lock, error) {
	if m.wait == 0 {
		return l.TryAcquire(ctx, key)
	}
	opts := []core.AcquireOption{core.WithWait(m.wait)}
	if m.failOpen {
		opts = append(opts, core.WithOutageWait(0)) // the request runs unprotected instead
	}
	return l.Acquire(ctx, key, opts...)
}

func (m *middleware) runLocked(c *gin.Context, k *core.Lock) {
	request := c.Request
	c.Set(heldKey{}, k)
	c.Request = request.WithContext(core.WithLock(k.Context(), k))
	done := false
	defer func() {
		c.Request = leave(c.Request, request)
		err := k.Release(c.Request.Context())
		lost := errors.Is(err, core.ErrLost)
		switch {
		case lost:
			m.log(c, slog.LevelError, "ginlock: the lock was lost while the handler ran; another may have run", err)
		case err != nil:
			m.log(c, slog.LevelWarn, "ginlock: a lock was not released; its key is free when its lease ends", err)
		}
		if lost && done && !c.Writer.Written() {
			m.refuse(c, problemLost)
		}
	}()
	c.Next()
	done = true
}
