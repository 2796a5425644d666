package redisbackend

import (
	"bytes"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	"github.com/onelane/onelane/core"
)

// A sealed key holds a NUL byte, which no owner begins with, the token in decimal, a colon and the
// value. Without a token, "0/" and a mark of the owner stand for it.
func packSeal(token uint64, value []byte) []byte {
	return packed(strconv.FormatUint(token, 10), value)
}

// packSealOf returns what g leaves under its key.
func packSealOf(g core.Grant, value []byte) []byte {
	if g.Token != 0 {
		return packSeal(g.Token, value)
	}
	return packed(ownerMark(g.Owner), value)
}

func packed(head string, value []byte) []byte {
	return slices.Concat([]byte("\x00"+head+":"), value)
}

// noToken begins the mark that stands for a token.
const noToken = "0/"

func ownerMark(owner string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(owner))
	return noToken + strconv.FormatUint(h.Sum64(), 16)
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
