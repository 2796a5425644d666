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
	return append(append(strconv.AppendUint(newSeal(value), token, 10), ':'), value...)
}

// packSealOf returns what g leaves under its key.
func packSealOf(g core.Grant, value []byte) []byte {
	if g.Token != 0 {
		return packSeal(g.Token, value)
	}
	return append(append(appendOwnerMark(newSeal(value), g.Owner), ':'), value...)
}

// newSeal begins a seal, and has room for the rest.
func newSeal(value []byte) []byte {
	return append(make([]byte, 0, longestHead+len(value)), 0)
}

// longestHead is how many bytes before the value a seal has at most.
const longestHead = len("\x00") + len("18446744073709551615") + len(":")

// noToken begins the mark that stands for a token.
const noToken = "0/"

func appendOwnerMark(b []byte, owner string) []byte {
	h := fnv.New64a()
	_, _ = h.Write([]byte(owner))
	return strconv.AppendUint(append(b, noToken...), h.Sum64(), 16)
}

func isSeal(value string) bool { return strings.HasPrefix(value, "\x00") }

func unpackSeal(seal string) (token uint64, value []byte) {
	head, rest, ok := bytes.Cut([]byte(strings.TrimPrefix(seal, "\x00")), []byte(":"))
	if !ok {
		return 0, head
	}
	if !bytes.HasPrefix(head, []byte(noToken)) {
		token, _ = strconv.ParseUint(string(head), 10, 64) // 0 is no token of ours
	}
	return token, rest
}

// sealedBy reports whether g left the seal.
func sealedBy(g core.Grant, seal string) bool {
	if token, _ := unpackSeal(seal); token != 0 {
		return token >= g.Token && token < g.Token+max(g.Tokens, 1)
	}
	return strings.HasPrefix(seal, string(append(appendOwnerMark([]byte{0}, g.Owner), ':')))
}

// companion returns the name of a second key in the slot of key: its token counter or channel.
func companion(key, suffix string) string {
	// The slot of a key with braces is that of the text between them.
	if _, after, ok := strings.Cut(key, "{"); ok && strings.IndexByte(after, '}') > 0 {
		return key + ":" + suffix
	}
	return "{" + key + "}:" + suffix
}
