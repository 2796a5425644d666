package redisbackend

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/onelane/onelane/core/redisbackend/internal/driver"
)

func TestReadReply(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]any{
		"+OK\r\n": "OK", ":-12\r\n": int64(-12), "$-1\r\n": nil, "*-1\r\n": nil, "$0\r\n\r\n": "", "$4\r\n\x00\r\na\r\n": "\x00\r\na",
		"*3\r\n:1\r\n$1\r\na\r\n*1\r\n$-1\r\n":  []any{int64(1), "a", []any{nil}},
		"*2\r\n-ERR no\r\n:2\r\n":               []any{driver.ReplyError("ERR no"), int64(2)},
		"-ERR no\r\n":                           driver.ReplyError("ERR no"),
		"-" + strings.Repeat("x", 300) + "\r\n": driver.ReplyError(strings.Repeat("x", 300)),
	} {
		r := bufio.NewReaderSize(io.MultiReader(strings.NewReader(text), strings.NewReader("+next\r\n")), 16)
		got, err := readReply(r, 0)
		if err != nil {
			got = err
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%.20q: %#v, want %#v", text, got, want)
		}
		if next, err := readReply(r, 0); next != "next" || err != nil {
			t.Errorf("after %.20q comes %v, %v", text, next, err)
		}
	}
	for _, text := range []string{"", "+OK", "+OK\n", "\r\n", "$x\r\n", "$-2\r\n", "$999999999999\r\n", "*999999\r\n", ":x\r\n", "!1\r\n", "$3\r\nab",
		strings.Repeat("*1\r\n", 9) + ":1\r\n"} {
		if v, err := readReply(bufio.NewReader(strings.NewReader(text)), 0); err == nil || isServerReply(err) {
			t.Errorf("%q: %v, %v", text, v, err)
		}
	}
}

func TestCommand_Append(t *testing.T) {
	t.Parallel()
	s := newScript(1, "", "return 1")
	plain := appendCommand(nil, driver.Plain("set", "k", "v"))
	if got := string(plain); got != "*3\r\n$3\r\nset\r\n$1\r\nk\r\n$1\r\nv\r\n" {
		t.Errorf("a plain command is %q", got)
	}
	eval := &command{Script: s, Keys: []string{"k"}, Args: []string{"a", ""}}
	want := "*6\r\n$7\r\nevalsha\r\n$40\r\n" + s.Hash + "\r\n$1\r\n1\r\n$1\r\nk\r\n$1\r\na\r\n$0\r\n\r\n"
	if got := string(appendCommand(nil, eval)); got != want {
		t.Errorf("a script is %q, want %q", got, want)
	}
	eval.Source = true
	if got := appendCommand(nil, eval); !bytes.Contains(got, []byte("$4\r\neval\r\n")) || !bytes.Contains(got, []byte(s.Src)) {
		t.Errorf("a script's source is %q", got)
	}
}

func FuzzReadReply(f *testing.F) {
	for _, text := range []string{"+OK\r\n", "*2\r\n$1\r\na\r\n:1\r\n", "-ERR\r\n", "$-1\r\n", "*1\r\n*1\r\n*-1\r\n"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := readReply(bufio.NewReader(bytes.NewReader(text)), 0)
		if err != nil && v != nil {
			t.Errorf("both %v and %v", v, err)
		}
		if err != nil && !isServerReply(err) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, errProtocol) {
			t.Errorf("error %v", err)
		}
	})
}
