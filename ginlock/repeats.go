package ginlock

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
)

// RefuseRepeats returns a middleware that refuses a form that is submitted twice, for clients that send no key: the
// same principal, method, path, query and body within the window gets 409 duplicate_submit. The first may be running
// still; when it is done the window begins. If it fails (it panics, or answers with a status that [RecordIf] leaves
// out: by default 5xx, 401, 407, 408, 425, 429) the form may be sent again at once. Its answer is not kept, nor held
// back.
//
// Who asks is [Principal], or what gin.BasicAuth found, or else the Authorization and Cookie headers and the client's
// address (see gin's ClientIP): anonymous users behind one address who send the same are taken for one. What is the
// same body [Fingerprint] can change. Redis gets a hash of it in the name of the key, which is not salted: whoever can
// read there can guess at short bodies.
//
// It panics at wiring when the window is shorter than 10 ms, or when options contradict each other. The Locker may be
// set later, by [core.SetDefault]: until then requests are 503.
func RefuseRepeats(window time.Duration, opts ...Option) gin.HandlerFunc {
	if window < minRetention {
		panic(fmt.Sprintf("ginlock: RefuseRepeats(%v): the window must be at least %v", window, minRetention))
	}
	window = window.Round(time.Millisecond)
	keep := option{"", func(c *config) { c.retention = window }}
	return newMiddleware(source{
		name: "repeats", readsBody: true, repeats: true,
		read: func(m *middleware, c *gin.Context) (string, error) {
			body, err := m.readBody(c)
			if err != nil {
				return "", &bodyError{err}
			}
			sum := idempotency.Digest(m.fingerprint(c, body))
			return hex.EncodeToString(sum[:]), nil
		},
	}, append(opts[:len(opts):len(opts)], keep))
}

// serveRepeats runs a request unless the same was sent before.
func (m *middleware) serveRepeats(c *gin.Context, l *core.Locker, key string) {
	who, err := m.who(c)
	if err != nil {
		m.misconfigured(c, "ginlock: who asks is not known: pass ginlock.Principal", "error", err)
		return
	}
	anonymous := ""
	if who == "" {
		h := credentials(c.Request)
		sum := idempotency.Digest(h[:], []byte(c.ClientIP()))
		anonymous = hex.EncodeToString(sum[:])
	}
	key = core.Join(who, c.Request.Method, c.FullPath(), m.name, anonymous, key)
	if idempotency.Carries(c.Request.Context(), key) {
		return
	}
	// No fingerprint: whatever makes two requests the same is in the key.
	out, err := m.claimsOn(l).Begin(c.Request.Context(), key, idempotency.Fingerprint{})
	switch {
	case err != nil:
		m.refuseErr(c, err)
	case out.Unprotected != nil:
		m.logUnprotected(c, out.Unprotected)
	case out.Replay != nil:
		m.refuse(c, problemRepeat)
	default:
		m.runFirst(c, out.Claim)
	}
}

// runFirst runs the handler under its claim, and leaves a tombstone. The answer need not wait for that: as long as
// there is none the claim is held, and a repeat is refused too.
func (m *middleware) runFirst(c *gin.Context, claim *idempotency.Claim) {
	request, before := c.Request, len(c.Errors)
	c.Set(heldKey{}, claim)
	c.Request = request.WithContext(claim.Context())
	finished := false
	defer func() {
		c.Request = leave(c.Request, request)
		unanswered := len(c.Errors) > before && c.Writer.Size() <= 0
		if finished && !unanswered && m.keeps(c, c.Writer.Status()) {
			m.complete(c, claim, idempotency.Tombstone())
		}
		m.abandon(c, claim) // leaves alone what was completed
	}()
	c.Next()
	finished = true
}

var problemRepeat = Problem{Status: http.StatusConflict, Code: CodeDuplicateSubmit, Title: "The same was submitted a moment ago", Correction: "Wait for the result of the first, or change what is submitted."}
