package idempotency_test

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/json"
	"errors"
	"math/big"
	"math/rand"
	"reflect"
	"strings"
	"testing"
	"testing/quick"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil/backendtest"
)

func TestDo_Mistakes(t *testing.T) {
	l := check.Locker(t, backendtest.Memory())
	never := func(context.Context) (int, error) { t.Error("the function ran"); return 0, nil }
	retain := idempotency.Retain(time.Hour)
	ask := func(context.Context, idempotency.Run) (int, idempotency.Recovery, error) { return 0, 0, nil }
	askText := func(context.Context, idempotency.Run) (string, idempotency.Recovery, error) { return "", 0, nil }
	for name, c := range map[string]struct {
		l    *core.Locker
		key  string
		fn   func(context.Context) (int, error)
		opts []idempotency.DoOption
		says string
	}{
		"no Retain":     {l, "k", never, nil, "pass Retain"},
		"no Locker":     {nil, "k", never, []idempotency.DoOption{retain}, "check the error of core.New"},
		"no function":   {l, "k", nil, []idempotency.DoOption{retain}, "the function is nil"},
		"no key":        {l, "", never, []idempotency.DoOption{retain}, "the key is empty"},
		"Retain":        {l, "k", never, []idempotency.DoOption{idempotency.Retain(-1)}, "Retain(-1ns)"},
		"no asking":     {l, "k", never, []idempotency.DoOption{retain, idempotency.RecoverWith[int](nil)}, "RecoverWith(nil)"},
		"other type":    {l, "k", never, []idempotency.DoOption{retain, idempotency.RecoverWith(askText)}, "must return a int"},
		"contradiction": {l, "k", never, []idempotency.DoOption{retain, idempotency.RecoverWith(ask), idempotency.RunAgain()}, "omit one"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := idempotency.Do(t.Context(), c.l, c.key, c.fn, c.opts...)
			if err == nil || !strings.Contains(err.Error(), c.says) || !strings.HasPrefix(err.Error(), "idempotency: Do "+`"`+c.key+`"`) {
				t.Errorf("got %v, want a text with %q", err, c.says)
			}
		})
	}
}

func TestDo_NoSeals(t *testing.T) {
	l := check.Locker(t, check.LeasesOnly{Backend: backendtest.Memory()})
	_, err := idempotency.Do(t.Context(), l, "k", func(context.Context) (int, error) { t.Error("it ran"); return 0, nil }, idempotency.Retain(time.Hour))
	check.Want(t, "Do", err, core.ErrNoSeals)
}

type (
	hidden   struct{ ID, secret string }
	Origin   struct{ Base int }
	tree     struct{ Left, Right *tree }
	onlyJSON struct{ N int }
	money    struct{ cents int64 }
	// byPointer writes itself only where it has an address, so not in a map.
	byPointer struct{ N int }
	left      struct {
		ID      int
		skipped int `json:"-"`
		_       int
	}
)

func (onlyJSON) MarshalJSON() ([]byte, error)        { return []byte("1"), nil }
func (m money) MarshalText() ([]byte, error)         { return json.Marshal(m.cents) }
func (m *money) UnmarshalText(b []byte) error        { return json.Unmarshal(b, &m.cents) }
func (*byPointer) MarshalJSON() ([]byte, error)      { return []byte("1"), nil }
func (*byPointer) UnmarshalJSON(b []byte) error      { return nil }
func (h hidden) String() string                      { return h.secret }
func (l left) String() string                        { return string(rune(l.skipped)) }
func (money) Generate(*rand.Rand, int) reflect.Value { return reflect.ValueOf(money{7}) }

// refuses reports whether Do refuses results of this type before its function runs.
func refuses[T any](t *testing.T, l *core.Locker) {
	t.Helper()
	_, err := idempotency.Do(t.Context(), l, "k", func(context.Context) (v T, err error) { t.Errorf("%T: it ran", v); return v, nil }, idempotency.Retain(time.Hour))
	if err == nil || !strings.Contains(err.Error(), "the result cannot be recorded") {
		t.Errorf("%v: got %v", reflect.TypeFor[T](), err)
	}
}

func TestDo_RefusesTypes(t *testing.T) {
	l := check.Locker(t, backendtest.Memory())
	refuses[any](t, l)
	refuses[error](t, l)
	refuses[chan int](t, l)
	refuses[func()](t, l)
	refuses[complex128](t, l)
	refuses[hidden](t, l)
	refuses[*hidden](t, l)
	refuses[[]map[string]*hidden](t, l)
	refuses[struct{ ID any }](t, l)
	refuses[struct{ *hidden }](t, l)
	refuses[struct{ hidden }](t, l)
	refuses[struct{ A [2]struct{ F func() } }](t, l)
	refuses[map[string]any](t, l)
	refuses[map[struct{ A int }]int](t, l)
	refuses[map[any]int](t, l)
	refuses[map[bool]int](t, l)
	refuses[onlyJSON](t, l)
	refuses[bytes.Buffer](t, l)
	refuses[map[string]byPointer](t, l)
}

// keeps checks that each value of a type comes back as it was.
func keeps[T any](t *testing.T, l *core.Locker) {
	t.Helper()
	n := 0
	same := func(v T) bool {
		n++
		key := core.Join("keeps", reflect.TypeFor[T]().String(), big.NewInt(int64(n)).String())
		for range 2 {
			got, err := idempotency.Do(t.Context(), l, key, func(context.Context) (T, error) { return v, nil }, idempotency.Retain(time.Minute))
			if err != nil || !reflect.DeepEqual(got, v) {
				t.Logf("%#v came back as %#v, %v", v, got, err)
				return false
			}
		}
		return true
	}
	if err := quick.Check(same, &quick.Config{MaxCount: 20}); err != nil {
		t.Errorf("%v: %v", reflect.TypeFor[T](), err)
	}
}

// A result that Do accepts comes back as it was.
func TestDo_KeepsTypes(t *testing.T) {
	l := check.Locker(t, backendtest.Memory())
	keeps[int64](t, l)
	keeps[*uint64](t, l)
	keeps[string](t, l)
	keeps[float64](t, l)
	keeps[[]byte](t, l)
	keeps[struct{}](t, l)
	keeps[tree](t, l)
	keeps[money](t, l)
	keeps[map[money]int](t, l)
	keeps[map[int8][]string](t, l)
	keeps[struct {
		Origin
		A [2]map[string]*int32
		M money
	}](t, l)
	for _, err := range []error{
		accepts[time.Time](t, l), accepts[big.Int](t, l), accepts[*big.Int](t, l), accepts[json.RawMessage](t, l), accepts[left](t, l), accepts[map[string]*byPointer](t, l),
	} {
		check.OK(t, "Do", err)
	}
}

func accepts[T any](t *testing.T, l *core.Locker) error {
	_, err := idempotency.Do(t.Context(), l, reflect.TypeFor[T]().String(), func(context.Context) (v T, err error) { return v, nil }, idempotency.Retain(time.Minute))
	return err
}

// A value that its type promised to keep, and that JSON refuses, is not kept.
func TestDo_ValueWithoutJSON(t *testing.T) {
	d := newDoer(t, backendtest.Memory())
	loop := &tree{}
	loop.Left = loop
	for range 2 {
		_, err := idempotency.Do(t.Context(), d.Locker, "tree", func(context.Context) (*tree, error) { d.runs++; return loop, nil }, idempotency.Retain(time.Hour))
		check.Want(t, "Do", err, idempotency.ErrNotKept)
	}
	d.ran(t, 1)
}

func aead(t testing.TB) cipher.AEAD {
	block, err := aes.NewCipher(make([]byte, 32))
	check.OK(t, "NewCipher", err)
	aead, err := cipher.NewGCM(block)
	check.OK(t, "NewGCM", err)
	return aead
}

// Services do not share keys, and encryption hides the result.
func TestDo_ServiceAndEncryption(t *testing.T) {
	b := backendtest.Memory()
	d := newDoer(t, b)
	encrypted := idempotency.WithEncryption(idempotency.EncryptionKey{ID: "1", AEAD: aead(t)})
	for _, opts := range [][]idempotency.DoOption{
		{idempotency.Service("a"), encrypted}, {idempotency.Service("b")}, {},
		{idempotency.Service("a"), encrypted}, {idempotency.Service("b")}, {},
	} {
		_, err := d.do(t, receipt{ID: "very secret"}, nil, opts...)
		check.OK(t, "Do", err)
	}
	d.ran(t, 3)
	_, err := d.do(t, receipt{}, nil, idempotency.Service("a"))
	check.Want(t, "without the key of encryption", err, idempotency.ErrUnreadable)
	for key, secret := range map[string]bool{"claim:a::@do:charge:42": true, "claim:b::@do:charge:42": false} {
		st, err := d.Inspect(t.Context(), key)
		if err != nil || st.Status != core.Sealed || bytes.Contains(st.Value, []byte("very secret")) == secret {
			t.Errorf("%s is %v with %q, %v", key, st.Status, st.Value, err)
		}
	}
}

// Steps and derived keys belong to the function.
func TestDo_Steps(t *testing.T) {
	d := newDoer(t, backendtest.Memory())
	charged := 0
	var keys []string
	pay := func(ctx context.Context) (receipt, error) {
		key, err := idempotency.DeriveKey(ctx, "charge")
		if err != nil {
			return receipt{}, err
		}
		keys = append(keys, key)
		id, err := idempotency.Step(ctx, "charge", func(context.Context) (string, error) { charged++; return "c1", nil })
		if err == nil && len(keys) == 1 {
			err = errors.New("the mail server is down")
		}
		return receipt{ID: id}, err
	}
	if _, err := d.with(t.Context(), pay, idempotency.RunAgain()); err == nil {
		t.Error("the first call succeeded")
	}
	got, err := d.with(t.Context(), pay, idempotency.RunAgain())
	if err != nil || got.ID != "c1" || charged != 1 || keys[0] != keys[1] {
		t.Errorf("the second call: %+v, %v; charged %d times; keys %q", got, err, charged, keys)
	}
}
