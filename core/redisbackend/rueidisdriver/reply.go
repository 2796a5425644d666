package rueidisdriver

import (
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/onelane/onelane/core/redisbackend/internal/driver"
)

// build makes a command for rueidis, which does not send it a second time.
func build(b rueidis.Builder, c *driver.Command) rueidis.Completed {
	switch {
	case c.Script == nil:
		return b.Arbitrary(c.Words...).Build()
	case c.Source:
		return b.Arbitrary("eval", c.Script.Src, strconv.Itoa(len(c.Keys))).Args(c.Keys...).Args(c.Args...).Build()
	default:
		return b.Arbitrary("evalsha", c.Script.Hash, strconv.Itoa(len(c.Keys))).Args(c.Keys...).Args(c.Args...).Build()
	}
}

// take sets the reply or the error of a command. The error is the connection's, or nil.
func take(c *driver.Command, r rueidis.RedisResult) error {
	if err := r.NonRedisError(); err != nil {
		c.Value, c.Err = nil, err
		return err
	}
	m, _ := r.ToMessage()
	c.Value, c.Err = value(&m), nil
	if e, refused := c.Value.(driver.ReplyError); refused {
		c.Value, c.Err = nil, e
	}
	return nil
}

// value returns a reply as RESP2 has it.
func value(m *rueidis.RedisMessage) any {
	switch {
	case m.IsNil():
		return nil
	case m.IsInt64():
		n, _ := m.AsInt64()
		return n
	case m.IsArray():
		all, _ := m.ToArray()
		values := make([]any, len(all))
		for i := range all {
			values[i] = value(&all[i])
		}
		return values
	}
	if err := m.Error(); err != nil {
		return replyError(err)
	}
	if text, err := m.ToString(); err == nil {
		return text
	}
	other, _ := m.ToAny() // a map, which we never ask for
	return other
}

// replyError returns an error that Redis answered. Rueidis leaves the code ERR out.
func replyError(err error) driver.ReplyError {
	text := err.Error()
	if code, _, _ := strings.Cut(text, " "); code == "" || strings.ToUpper(code) != code {
		text = "ERR " + text
	}
	return driver.ReplyError(text)
}
