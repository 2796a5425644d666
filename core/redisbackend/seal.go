package redisbackend

import (
	"bytes"
	"hash/fnv"
	"strconv"
	"strings"

	"github.com/onelane/onelane/core"
)

// A sealed key holds a NUL byte, which no owner begins with, the token in decimal, a colon and the
// value. Without a token, "0/" and a mark of the owner stand for it.
func packSeal(token uint64, value []byte) []byte {
	return appendSeal(strconv.AppendUint([]byte{0}, token, 10), value)
}

// packSealOf returns what g leaves under its key.
func packSealOf(g core.Grant, value []byte) []byte {
	if g.Token != 0 {
		return packSeal(g.Token, value)
	}
	return appendSeal(append([]byte{0}, ownerMark(g.Owner)...), value)
}

func appendSeal(head, value []byte) []byte {
	b := make([]byte, 0, len(head)+1+len(value))
	b = append(append(b, head...), ':')
	return append(b, value...)
}

func ownerMark(owner string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(owner))
	return "0/" + strconv.FormatUint(h.Sum64(), 16)
}

func isSeal(value string) bool { return strings.HasPrefix(value, "\x00") }

func unpackSeal(seal string) (token uint64, value []byte) {
	head, rest, ok := bytes.Cut([]byte(strings.TrimPrefix(seal, "\x00")), []byte(":"))
	if !ok {
		return 0, head
	}
	token, _ = strconv.ParseUint(string(head), 10, 64) // 0 is no token of ours
	return token, rest
}

// sealedBy reports whether g left the seal.
func sealedBy(g core.Grant, seal string) bool {
	if token, _ := unpackSeal(seal); token != 0 {
		return token >= g.Token && token < g.Token+max(g.Tokens, 1)
	}
	return strings.HasPrefix(seal, "\x00"+ownerMark(g.Owner)+":")
}

// companion returns the name of a second key in the slot of key: its token counter or channel.
func companion(key, suffix string) string {
	// The slot of a key with braces is that of the text between them.
	if _, after, ok := strings.Cut(key, "{"); ok && strings.IndexByte(after, '}') > 0 {
		return key + ":" + suffix
	}
	return "{" + key + "}:" + suffix
}
