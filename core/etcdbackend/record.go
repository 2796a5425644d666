package etcdbackend

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	"github.com/onelane/onelane/core"
)

// The limits of what is written. etcd refuses requests of more than 1.5 MiB by default.
const (
	maxKey   = 2 << 10
	maxOwner = 1 << 10
	maxValue = 1<<20 + 1<<18

	// maxMillis keeps the sum of two durations in range. Beyond it a record that lasts for so long
	// would look as if it had ended.
	maxMillis = math.MaxInt64 / 2 / int64(time.Millisecond)
)

const (
	format      = 1
	stateHeld   = "held" // orphaned after the TTL, for as long as orphan_ms says
	stateSealed = "sealed"

	// tokensPerLease is how many fencing tokens belong to a revision.
	tokensPerLease = 64
)

// record is the value of a key: one line of JSON, and the bytes of a seal after it. All durations
// are in milliseconds and count from when the write was sent.
type record struct {
	Format int    `json:"onelane"`
	State  string `json:"state"`
	Owner  string `json:"owner"`
	// TTL is how long the lease or the seal lasts.
	TTL int64 `json:"ttl_ms"`
	// Orphan is how long the key stays orphaned after the lease.
	Orphan int64 `json:"orphan_ms,omitempty"`
	// Token is the first token of the lease, or that of the seal. With 0 this write acquired the
	// lease, and its token comes from the revision.
	Token uint64 `json:"token,omitempty"`
	// Adopted is the owner of the orphan that this write took over, and AdoptedFor how long the
	// orphan had left. If nobody learns of the write, the orphan is restored.
	Adopted    string `json:"adopted,omitempty"`
	AdoptedFor int64  `json:"adopted_ms,omitempty"`
	// Lag is how old the key's etcd lease was, at most, when the write was sent.
	Lag int64 `json:"lag_ms,omitempty"`

	value []byte
}

// errForeign means that a key holds something that this package did not write.
var errForeign = fmt.Errorf("%w: etcd holds a value of another program under it; "+
	"choose another prefix (core.WithPrefix)", core.ErrInvalidKey)

func (r record) encode() (string, error) {
	r.Format = format
	header, err := json.Marshal(r)
	if err != nil {
		return "", err
	}
	return string(header) + "\n" + string(r.value), nil
}

func decode(key string, text []byte) (r record, err error) {
	header, value, found := bytes.Cut(text, []byte("\n"))
	if !found || json.Unmarshal(header, &r) != nil || r.Format == 0 {
		return r, fmt.Errorf("etcdbackend: key %q: %w", key, errForeign)
	}
	known := r.Format == format && (r.State == stateHeld || r.State == stateSealed)
	for _, ms := range []int64{r.TTL, r.Orphan, r.Lag} {
		known = known && ms >= 0 && ms <= maxMillis
	}
	if !known {
		return r, fmt.Errorf("etcdbackend: key %q has format %d and state %q: a newer version of this "+
			"module wrote it; update this service: %w", key, r.Format, r.State, core.ErrInvalidKey)
	}
	r.value = value
	return r, nil
}

// lasts returns for how long the record says something after its write was sent.
func (r record) lasts() time.Duration { return duration(r.TTL) + duration(r.Orphan) }

// status returns the state of a key whose write was sent at least age ago, and how long it lasts.
func (r record) status(age time.Duration) (s core.Status, left time.Duration) {
	switch ttl := duration(r.TTL); {
	case r.State == stateSealed && age < ttl:
		return core.Sealed, ttl - age
	case r.State == stateHeld && age < ttl:
		return core.Held, ttl - age
	case age < r.lasts():
		return core.Orphaned, r.lasts() - age
	}
	return core.Free, 0
}

func duration(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// fits refuses what cannot be written, before anything is sent.
func fits(key, owner string) error {
	if len(key) > maxKey || len(owner) > maxOwner {
		return fmt.Errorf("etcdbackend: key %q… has %d bytes and its owner %d; "+
			"at most %d and %d are allowed: %w",
			key[:min(len(key), 32)], len(key), len(owner), maxKey, maxOwner, core.ErrInvalidKey)
	}
	if key == "" || !utf8.ValidString(owner) {
		return fmt.Errorf("etcdbackend: key %q with owner %q: the key must not be empty, "+
			"and the owner must be UTF-8: %w", key, owner, core.ErrInvalidKey)
	}
	return nil
}
