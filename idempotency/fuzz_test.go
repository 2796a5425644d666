package idempotency_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/onelane/onelane/idempotency"
)

// The key that a body has is what a handler finds in it as a struct. A handler finds the same in a
// map if the name is written as in the template.
func FuzzJSONMember(f *testing.F) {
	for _, seed := range []string{
		`{"order":{"id":7}}`, `{"order":{"id":"7"}}`, `{"Order":{"ID":7}}`, `{"order":{"id":7,"id":8}}`, `{"order":{"id":1e3}}`,
		`{"order":{"id":null}}`, `{"order":null,"order":{"id":1}}`, `{"order":{"id":1}}{"order":{"id":2}}`, `[{"order":1}]`,
		`{"order":{"id":"\u0041\ud83d\ude00"}}`, "{\"order\":{\"\u0131d\":1,\"id\":2}}", `{"order":{"id":{"id":1}}}`, ` {"order" : {"id":-0}} `,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := idempotency.JSONMember(body, []string{"order", "id"})
		if err != nil {
			if got != "" {
				t.Fatalf("%q: %q beside %v", body, got, err)
			}
			return
		}
		if got == "" || len(got) > 255 || !utf8.ValidString(got) {
			t.Fatalf("%q: %q", body, got)
		}
		var bound struct {
			Order struct {
				ID any `json:"id"`
			} `json:"order"`
		}
		d := json.NewDecoder(bytes.NewReader(body))
		d.UseNumber()
		if err := d.Decode(&bound); err != nil || fmt.Sprint(bound.Order.ID) != got {
			t.Fatalf("%q: the lock is on %q, the handler gets %v, %v", body, got, bound.Order.ID, err)
		}
		var loose map[string]any
		d = json.NewDecoder(bytes.NewReader(body))
		d.UseNumber()
		if err := d.Decode(&loose); err != nil {
			t.Fatal(err)
		}
		if order, ok := loose["order"].(map[string]any); ok {
			if id, ok := order["id"]; ok && fmt.Sprint(id) != got {
				t.Fatalf("%q: the lock is on %q, the handler gets %v", body, got, id)
			}
		}
	})
}

func FuzzQueryKey(f *testing.F) {
	for _, seed := range []string{"", "q=1", "q=1&q=2", "q=1;q=2", "Q=1", "q", "q=%41", "q=%", "q=a+b", "%71=1&q=2"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, query string) {
		got, err := idempotency.QueryKey(query, "q")
		u := url.URL{RawQuery: query}
		if all := u.Query()["q"]; err == nil && (len(all) != 1 || all[0] != got) {
			t.Fatalf("%q: the lock is on %q, the handler gets %q", query, got, all)
		}
	})
}

// A body is read as it is, whatever length was announced and in whatever portions it comes.
func FuzzReadAll(f *testing.F) {
	f.Add(0, -1, 10)
	f.Add(100_000, 100_000, 1<<20)
	f.Add(100_000, 5, 1<<20)
	f.Add(100_000, 1<<30, 100_000)
	f.Add(33_000, 33_000, 32_999)
	f.Fuzz(func(t *testing.T, size, announced, limit int) {
		if size < 0 || size > 1<<20 || limit < 0 || limit > 1<<20 || announced < -1 {
			return
		}
		body := bytes.Repeat([]byte("x"), size)
		for _, r := range []io.Reader{bytes.NewReader(body), iotest.DataErrReader(bytes.NewReader(body)), iotest.HalfReader(bytes.NewReader(body))} {
			got, err := idempotency.ReadAll(r, announced, limit)
			if size > limit != (err != nil) || err == nil && !bytes.Equal(got, body) {
				t.Fatalf("%d bytes of %d, %v", len(got), size, err)
			}
			if err == nil && cap(got) > max(8*size, 64<<10)+1 {
				t.Fatalf("%d bytes take %d", size, cap(got))
			}
		}
		broken := errors.New("broken")
		if _, err := idempotency.ReadAll(io.MultiReader(bytes.NewReader(body), iotest.ErrReader(broken)), announced, limit); err == nil || size <= limit && err != broken {
			t.Fatalf("%v", err)
		}
	})
}
