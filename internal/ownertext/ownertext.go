// Package ownertext writes and reads the text that names one lease in a backend:
// "<instance>/<random>[;<orphan retention in ms>][#<tag>]". It also reads the names of keys.
package ownertext

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/maphash"
	"strconv"
	"strings"
	"time"
)

// New returns a text that no other lease has. Its random part begins with the time, in ms. The
// other ten bytes come from crypto/rand: a machine cloned from a running image must not draw the
// same numbers. The instance must not contain "/" or "#".
func New(instance, tag string, orphan time.Duration) string {
	var random [16]byte
	binary.BigEndian.PutUint64(random[:], uint64(time.Now().UnixMilli())<<16)
	_, _ = rand.Read(random[timeBytes:]) // never fails: the process ends instead
	b := append(make([]byte, 0, longest), instance...)
	b = append(b, '/')
	b = hex.AppendEncode(b, random[:])
	if orphan > 0 {
		b = append(b, ';')
		b = strconv.AppendInt(b, Millis(orphan), 10)
	}
	if tag != "" {
		b = append(b, '#')
		b = append(b, tag...)
	}
	return string(b)
}

// Split returns the holder, "<instance>/<random>", and the tag. A value of another program is a
// holder without a tag, as Shown returns it.
func Split(owner string) (holder, tag string) {
	if !Ours(owner) {
		return Shown(owner), ""
	}
	return split(owner)
}

func split(owner string) (holder, tag string) {
	head, tag, _ := strings.Cut(owner, "#")
	if i := mark(head); i >= 0 {
		head = head[:i]
	}
	return head, tag
}

// Shown returns an owner text as people may see it. A value of another program may be long or a
// secret. So Shown returns its size, and a mark that tells values apart within this process.
func Shown(owner string) string {
	if owner == "" || Ours(owner) {
		return owner
	}
	return fmt.Sprintf("another program's value of %d bytes (%016x)", len(owner), maphash.String(seed, owner))
}

var seed = maphash.MakeSeed()

// Orphan returns the retention of the orphan that the lease leaves behind, or 0 if it leaves none.
func Orphan(owner string) time.Duration {
	head, _, _ := strings.Cut(owner, "#")
	i := mark(head)
	if i < 0 {
		return 0
	}
	ms, err := strconv.ParseInt(head[i+1:], 10, 64)
	if err != nil || ms < 0 || ms > int64(maxOrphan/time.Millisecond) {
		return 0
	}
	return time.Duration(ms) * time.Millisecond
}

const maxOrphan = 100 * 365 * 24 * time.Hour

// mark returns the index of the ";" after the "/", or -1.
func mark(head string) int {
	slash := strings.IndexByte(head, '/')
	if slash < 0 {
		return -1
	}
	i := strings.IndexByte(head[slash:], ';')
	if i < 0 {
		return -1
	}
	return slash + i
}

// Asked returns when the holder asked for the lease, by its own clock, or the zero time if the text
// does not say so. Another library's text may only look as if it did.
func Asked(owner string) time.Time {
	b := randomPart(owner)
	if b == nil {
		return time.Time{}
	}
	t := time.UnixMilli(int64(binary.BigEndian.Uint64(b) >> 16))
	if t.Before(earliest) || time.Until(t) > time.Hour {
		return time.Time{}
	}
	return t
}

// Ours reports whether the owner or holder has the form that New gives it.
func Ours(owner string) bool { return len(owner) <= longest && randomPart(owner) != nil }

// randomPart returns it, or nil if the text is another library's.
func randomPart(owner string) []byte {
	holder, _ := split(owner)
	_, text, _ := strings.Cut(holder, "/")
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != 16 {
		return nil
	}
	return b
}

// longest is how many bytes an owner of core has at most: those of an instance and a tag, and 55.
const longest = 128 + 256 + 55

// timeBytes is how many bytes of the random part are the time.
const timeBytes = 6

// earliest is older than every text that New made.
var earliest = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Millis returns d in milliseconds, rounded up.
func Millis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

var unescape = strings.NewReplacer("%25", "%", "%7B", "{", "%7D", "}")

// Key returns the key that a backend's name stands for, as the caller wrote it. Without a prefix,
// the name is the key, and has no braces. A prefix has none either.
func Key(name string) string {
	_, key, braces := strings.Cut(name, "{")
	if !braces {
		return name
	}
	return unescape.Replace(strings.TrimSuffix(key, "}"))
}
