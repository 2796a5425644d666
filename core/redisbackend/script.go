package redisbackend

import (
	"crypto/fips140"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	redsyncredis "github.com/go-redsync/redsync/v4/redis"

	"github.com/onelane/onelane/core/redisbackend/internal/driver"
	"github.com/onelane/onelane/internal/ownertext"
)

// script is a Lua script: one atomic step and one round trip. Its first KEYS is the lock's key.
type script = driver.Script

type command = driver.Command

// newScript makes a script of its source and the functions before it.
func newScript(keys int, before, source string) *script {
	source = fmt.Sprintf("local block = %d\nlocal time\n%s%s", tokenBlock, before, source)
	return redsyncredis.NewScript(keys, source, sha1Hex(source))
}

// sha1Hex returns the SHA-1 of text. Redis names its scripts by it, and it protects nothing, so FIPS
// mode may allow it.
func sha1Hex(text string) string {
	var sum [sha1.Size]byte
	fips140.WithoutEnforcement(func() { sum = sha1.Sum([]byte(text)) })
	return hex.EncodeToString(sum[:])
}

// scriptCommand makes the command that runs a script. Renewals have connections of their own, so
// that they never wait behind other calls.
func scriptCommand(s *script, keys []string, args ...string) *command {
	return &command{Script: s, Renewal: s == extendScript || s == quorumExtendScript, Keys: keys, Args: args}
}

// millis returns d in milliseconds, rounded up, as the argument of a script.
func millis(d time.Duration) string { return number(ownertext.Millis(d)) }

func number(n int64) string { return strconv.FormatInt(n, 10) }
