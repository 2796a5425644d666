package zkbackend

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/leases"
	"github.com/onelane/onelane/internal/ownertext"
)

// shards is how many nodes below the root share the keys: a node with many thousand children is
// slow to list.
const shards = 64

// The states that a key's node says. A held key may be expired.
const (
	stateHeld     = "held"
	stateSealed   = "sealed"
	stateOrphaned = "orphaned"
)

const format = "onelane1" // the first word of a node

// maxMillis keeps the sum of two durations in range. Beyond it a node that lasts for so long would
// look as if it had ended.
const maxMillis = math.MaxInt64 / 2 / uint64(time.Millisecond)

// header is the text of a key's node. Its durations are whole milliseconds.
type header struct {
	state string
	// lasts is the length of the lease or of the seal, or what is left of the orphan. It counts from
	// the write on.
	lasts time.Duration
	// orphan is how long the orphan of a held key stays.
	orphan time.Duration
	// since is when an orphaned key's lease ended, by the leader's clock. It is zero if that was the
	// node's last change.
	since time.Time
	// token is the one that the key was sealed with.
	token uint64
	// pieces is how many the seal's value has, besides the one in the guard.
	pieces int
	owner  string
}

// text is one line of numbers, and the owner.
func (h header) text() []byte {
	var since int64
	if !h.since.IsZero() {
		since = h.since.UnixMilli()
	}
	return fmt.Appendf(nil, "%s %s %d %d %d %d %d\n%s", format, h.state,
		ownertext.Millis(h.lasts), ownertext.Millis(h.orphan), since, h.token, h.pieces, h.owner)
}

func parse(text []byte) (h header, ok bool) {
	line, owner, found := strings.Cut(string(text), "\n")
	words := strings.Split(line, " ")
	states := []string{stateHeld, stateSealed, stateOrphaned}
	if !found || len(words) != 7 || words[0] != format || !slices.Contains(states, words[1]) {
		return h, false
	}
	var numbers [5]uint64
	for i := range numbers {
		n, err := strconv.ParseUint(words[i+2], 10, 64)
		if err != nil {
			return h, false
		}
		numbers[i] = n
	}
	if numbers[0] > maxMillis || numbers[1] > maxMillis || numbers[4] > maxValue/pieceSize {
		return h, false
	}
	h = header{
		state: words[1], lasts: millis(numbers[0]), orphan: millis(numbers[1]),
		token: numbers[3], pieces: int(numbers[4]), owner: owner,
	}
	if numbers[2] > 0 {
		h.since = time.UnixMilli(int64(numbers[2]))
	}
	return h, true
}

func millis(n uint64) time.Duration { return time.Duration(n) * time.Millisecond }

// node is the node of a key as it was written or read. Its guard and its version together never
// come back, so they are the condition of every change.
type node struct {
	header
	path    string
	version int32
	zxid    int64     // of the last change
	changed time.Time // by the clock of ZooKeeper's leader
	seen    time.Time // since when this process knows that it is so
}

func newNode(path string, h header, stat *zk.Stat, seen time.Time) *node {
	return &node{header: h, path: path, version: stat.Version, zxid: stat.Mzxid,
		changed: time.UnixMilli(stat.Mtime), seen: seen}
}

// guard is the path of the node that is there as long as the owner has the key.
func (n *node) guard() string { return guardOf(n.path, n.owner) }

func guardOf(path, owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return path + "/" + hex.EncodeToString(sum[:16])
}

// status returns the status of a key and how much is left of it.
//
// A lease ends when this process has seen it unchanged for as long as it lasts. No clocks are
// compared. The end of a seal or an orphan, which may last for days, also comes by the leader's
// clock.
func (b *backend) status(n *node) (s core.Status, left time.Duration) {
	seen := time.Since(n.seen)
	aged := max(seen, b.clock.age(n.changed)-clockAllowance)
	switch {
	case n.state == stateHeld && seen < n.lasts:
		return core.Held, n.lasts - seen
	case n.state == stateHeld && aged < n.lasts+n.orphan:
		return core.Orphaned, n.lasts + n.orphan - aged
	case n.state == stateSealed && aged < n.lasts:
		return core.Sealed, n.lasts - aged
	case n.state == stateOrphaned && aged < n.lasts:
		return core.Orphaned, n.lasts - aged
	}
	return core.Free, 0
}

// ended returns when the lease of an orphaned key ended, by the leader's clock.
func (n *node) ended() time.Time {
	switch {
	case n.state != stateOrphaned:
		return n.changed.Add(n.lasts)
	case n.since.IsZero(): // its holder made it so
		return n.changed
	}
	return n.since
}

// since returns when the lease of an orphaned key ended, by this process's clock.
func (b *backend) since(n *node) time.Time {
	return time.Now().Add(-b.clock.age(n.ended()))
}

func (n *node) lost(s core.Status) error { return leases.Lost(s, n.owner) }

var errLostFree = fmt.Errorf("%w: the key is free", core.ErrLost)

// maxName is how long the escaped key may be.
const maxName = 4096

// pathOf returns the path of a key's node.
func (b *backend) pathOf(key string) (string, error) {
	name := escape(key)
	if name == "" || len(name) > maxName {
		return "", fmt.Errorf("zkbackend: key %q… has %d bytes: a key must have from 1 byte to %d after escaping: %w",
			key[:min(len(key), 32)], len(key), maxName, core.ErrInvalidKey)
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(key))
	return fmt.Sprintf("%s/%02x/%s", b.root, hash.Sum32()%shards, name), nil
}

// plain are the characters of a key that are not escaped, besides letters and digits. A dot at the
// start is escaped: ZooKeeper has no node "..".
const plain = "-_.:{}@+=,~"

// escape returns the key with its other bytes as % and two hexadecimal digits.
func escape(key string) string {
	var b strings.Builder
	for i := range len(key) {
		c := key[i]
		letter := c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9'
		if letter || strings.IndexByte(plain, c) >= 0 && (c != '.' || i > 0) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func parentOf(path string) string { return path[:strings.LastIndexByte(path, '/')] }
