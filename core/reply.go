package core

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// reply is a script's answer: a status, and what belongs to it.
type reply struct {
	status  int64
	fields  []any
	sent    time.Time       // when the try that was answered was sent
	retried bool            // a try before it may have had its effect
	late    <-chan struct{} // closed when a call that was given up has returned; nil where none was
}

// decode reads what the clients make of a script's array: numbers as int64, strings as string or []byte.
func (r *reply) decode(v any) error {
	fields, ok := v.([]any)
	if !ok || len(fields) == 0 {
		return fmt.Errorf("core: a script answered %T instead of an array", v)
	}
	r.fields = fields
	if r.status, ok = fields[0].(int64); !ok {
		return fmt.Errorf("core: a script answered %T instead of a status", fields[0])
	}
	return nil
}

func (r *reply) text(i int) string {
	if i >= len(r.fields) {
		return ""
	}
	switch v := r.fields[i].(type) {
	case string:
		return v
	case []byte:
		return string(v)
	default:
		return ""
	}
}

func (r *reply) uint(i int) (uint64, error) {
	if i < len(r.fields) {
		if n, ok := r.fields[i].(int64); ok && n >= 0 {
			return uint64(n), nil
		}
	}
	n, err := strconv.ParseUint(r.text(i), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("core: a script answered no token: %w", err)
	}
	return n, nil
}

// millis is a PTTL: 0 for a key without expiry, and at least 1 ms for one that is about to expire.
func (r *reply) millis(i int) time.Duration {
	if i < len(r.fields) {
		if n, ok := r.fields[i].(int64); ok && n >= 0 {
			return time.Duration(max(n, 1)) * time.Millisecond
		}
	}
	return 0
}

func (r *reply) unexpected(key string) error {
	return fmt.Errorf("core: key %q: a script answered with status %d", key, r.status)
}

// lost says how the lease was found to be gone.
func (r *reply) lost() error {
	switch r.status {
	case 2:
		holder, _ := splitOwner(r.text(1))
		return fmt.Errorf("%w: the key is held by %s", ErrLost, holder)
	case 3:
		return fmt.Errorf("%w: the key is sealed", ErrLost)
	default:
		return fmt.Errorf("%w: the key expired or was deleted", ErrLost)
	}
}

// serverReply says that an error is the server's own answer, not a failure to reach it.
func serverReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply) || serverCode(err)
}

// serverCode knows a server's answer by the word that it begins with, from clients whose errors have no type for it.
func serverCode(err error) bool {
	switch e := err.(type) {
	case nil:
		return false
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(e.Unwrap(), serverCode)
	case interface{ Unwrap() error }:
		return serverCode(e.Unwrap())
	}
	code, _, _ := strings.Cut(err.Error(), " ")
	return slices.Contains(serverCodes, code)
}

var serverCodes = []string{"ERR", "OOM", "READONLY", "LOADING", "BUSY", "MISCONF", "NOREPLICAS", "NOAUTH", "NOPERM", "WRONGPASS", "MASTERDOWN",
	"CLUSTERDOWN", "CROSSSLOT", "TRYAGAIN", "MOVED", "ASK", "NOSCRIPT", "WRONGTYPE", "UNKILLABLE"}

// refused says that the server answered that it did not run the script: nothing needs to be cleaned up.
func refused(err error) bool {
	return serverReply(err) && !strings.Contains(err.Error(), "CLUSTERDOWN")
}

// foreign says that the key holds a value of another type, which is none of ours.
func foreign(err error) bool { return err != nil && strings.Contains(err.Error(), "WRONGTYPE") }

// lostIfForeign makes ErrLost of a key that somebody overwrote with another type.
func lostIfForeign(err error) error {
	if errors.Is(err, ErrInvalidKey) {
		return fmt.Errorf("%w: %v", ErrLost, err)
	}
	return err
}
