package redisbackend

import (
	"bufio"
	"errors"
	"io"
	"strconv"
	"strings"

	"github.com/onelane/onelane/core/redisbackend/internal/driver"
)

// go-redis dials, encrypts and authenticates a connection. After that, this file writes commands
// and reads replies (RESP2). For a lock it takes a third of the memory, and a pipeline needs no
// goroutine.

const (
	// mostElements bounds an array of a reply, and deepest how deep arrays nest. Our scripts answer
	// with a few elements.
	mostElements = 1 << 16
	deepest      = 4
	// longestBulk bounds a text of a reply: Redis's own limit.
	longestBulk = 512 << 20
	// keptBuffer is how large a buffer is kept for the next call.
	keptBuffer = 64 << 10
)

var errProtocol = errors.New("redisbackend: the answer of Redis is not a RESP2 reply; check whether a proxy or another server is at this address")

// appendCommand writes a command to b.
func appendCommand(b []byte, c *command) []byte {
	words := c.All()
	b = appendCount(b, '*', len(words))
	for _, w := range words {
		b = append(append(appendCount(b, '$', len(w)), w...), '\r', '\n')
	}
	return b
}

func appendCount(b []byte, kind byte, n int) []byte {
	return append(strconv.AppendInt(append(b, kind), int64(n), 10), '\r', '\n')
}

// readReply reads one reply. An error that Redis answered is a driver.ReplyError; any other error
// leaves the connection useless.
func readReply(r *bufio.Reader, depth int) (any, error) {
	line, err := readLine(r)
	if err != nil {
		return nil, err
	}
	text := line[1:]
	switch line[0] {
	case '+':
		return string(text), nil
	case '-':
		return nil, driver.ReplyError(text)
	case ':':
		n, err := strconv.ParseInt(string(text), 10, 64)
		if err != nil {
			return nil, errProtocol
		}
		return n, nil
	case '$':
		return readBulk(r, text)
	case '*':
		return readArray(r, text, depth)
	default:
		return nil, errProtocol
	}
}

// readLine returns a line without its end. It has at least one byte.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		// A long error text.
		line = append([]byte(nil), line...)
		rest, more := r.ReadBytes('\n')
		line, err = append(line, rest...), more
	}
	if err != nil {
		return nil, err
	}
	if n := len(line); n < 3 || line[n-2] != '\r' {
		return nil, errProtocol
	}
	return line[:len(line)-2], nil
}

func readBulk(r *bufio.Reader, length []byte) (any, error) {
	n, err := strconv.Atoi(string(length))
	switch {
	case err != nil || n < -1 || n > longestBulk:
		return nil, errProtocol
	case n == -1:
		return nil, nil
	}
	if n+len("\r\n") <= r.Size() {
		text, err := r.Peek(n + len("\r\n"))
		if err != nil {
			return nil, err
		}
		value := string(text[:n])
		_, err = r.Discard(len(text))
		return value, err
	}
	var text strings.Builder // a seal may have megabytes: they are copied once
	text.Grow(n)
	if _, err := io.CopyN(&text, r, int64(n)); err != nil {
		return nil, err
	}
	_, err = r.Discard(len("\r\n"))
	return text.String(), err
}

// readArray returns []any. An error within it is an element.
func readArray(r *bufio.Reader, length []byte, depth int) (any, error) {
	n, err := strconv.Atoi(string(length))
	switch {
	case err != nil || n < -1 || n > mostElements || depth >= deepest:
		return nil, errProtocol
	case n == -1:
		return nil, nil
	}
	all := make([]any, n)
	for i := range all {
		v, err := readReply(r, depth+1)
		var inner driver.ReplyError
		switch {
		case errors.As(err, &inner):
			all[i] = inner
		case err != nil:
			return nil, err
		default:
			all[i] = v
		}
	}
	return all, nil
}
