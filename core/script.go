package core

import (
	"crypto/sha1" // the name Redis gives a script
	_ "embed"
	"encoding/hex"
	"fmt"

	redsyncredis "github.com/go-redsync/redsync/v4/redis"
)

// A script does one verb for one lock: one atomic step, and one round trip. Its twin does it for many locks that are asked for at
// the same time (see batches): one script with 32 locks costs Redis half as much as 32 scripts.
type script struct {
	*redsyncredis.Script
	many *redsyncredis.Script
	keys int // of one lock
}

//go:embed each.lua
var eachSource string

// newScript makes a script of its source and what comes before it, functions that it uses.
func newScript(keys int, before, source string) *script {
	before = fmt.Sprintf("local block = %d\nlocal time\n%s", tokenBlock, before)
	return &script{
		Script: hashed(keys, before+source),
		many:   hashed(-1, fmt.Sprintf("%slocal each = %d\nlocal function one(KEYS, ARGV)\n%s%s", before, keys, source, eachSource)),
		keys:   keys,
	}
}

func hashed(keys int, source string) *redsyncredis.Script {
	sum := sha1.Sum([]byte(source))
	return redsyncredis.NewScript(keys, source, hex.EncodeToString(sum[:]))
}
