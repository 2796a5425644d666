package redisbackend

import (
	"crypto/sha1" // the name that Redis gives a script
	_ "embed"
	"encoding/hex"
	"fmt"

	redsyncredis "github.com/go-redsync/redsync/v4/redis"

	"github.com/onelane/onelane/core/redisbackend/internal/driver"
)

// script is a Lua script: one atomic step and one round trip. Its first KEYS is the lock's key.
type script = driver.Script

type command = driver.Command

// renewals are the scripts that have connections of their own, so that a renewal never waits behind
// other calls.
var renewals = make(map[*script]bool)

// newScript makes a script of its source and the functions before it.
func newScript(keys int, before, source string) *script {
	source = fmt.Sprintf("local block = %d\nlocal time\n%s%s", tokenBlock, before, source)
	sum := sha1.Sum([]byte(source))
	return redsyncredis.NewScript(keys, source, hex.EncodeToString(sum[:]))
}

// newRenewal is newScript for a script that renews a lease.
func newRenewal(keys int, before, source string) *script {
	s := newScript(keys, before, source)
	renewals[s] = true
	return s
}

// scriptCommand makes the command that runs a script.
func scriptCommand(s *script, keys []string, args ...any) *command {
	return &command{Script: s, Renewal: renewals[s], Keys: keys, Args: args}
}
