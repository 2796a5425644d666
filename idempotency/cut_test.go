package idempotency_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/testutil"
)

// The source of an answer breaks off. Its client sees that the body is too short. A replay of that
// body would look complete.
func TestTombstone_CutShort(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	s := orders(t, testutil.Locker(t), func(w http.ResponseWriter, _ *http.Request) {
		runs.Add(1)
		w.Header().Set("Content-Length", "100") // what the storage announced
		storage := io.MultiReader(strings.NewReader("half an in"), iotest.ErrReader(errors.New("the storage is gone")))
		_, _ = io.Copy(w, storage)
	})
	req, err := http.NewRequest(http.MethodPost, s.url+"/orders/7", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = s.host
	req.Header.Set("Idempotency-Key", "k")
	resp, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("the first client got %q, %v; want it to see that the answer broke off", b, err)
	}
	s.order("").refused(t, idempotency.CodeResponseNotKept)
	if runs.Load() != 1 {
		t.Errorf("%d runs", runs.Load())
	}
}
