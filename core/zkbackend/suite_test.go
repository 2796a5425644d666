package zkbackend_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/zkbackend"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
	"github.com/onelane/onelane/testutil/backendtest"
)

func TestBackend_OneServer(t *testing.T) {
	t.Parallel()
	node := shared(t)
	b := open(t, at(t, node.Addr()))
	backendtest.TestSealer(t, func(*testing.T) core.Backend { return b })
}

// The tests of an ensemble share one, since each has three processes of Java.
func TestBackend_Ensemble(t *testing.T) {
	t.Parallel()
	nodes := testutil.ZooKeeperEnsemble(t)
	t.Run("Inspect_OtherServer", func(t *testing.T) { inspectElsewhere(t, nodes) })
	if check.Long { // else one server has to pass the suite
		t.Run("Suite", func(t *testing.T) {
			b := open(t, zkbackend.New(nodes.Addrs(), zkbackend.WithTimeout(10*time.Second)))
			backendtest.TestSealer(t, func(*testing.T) core.Backend { return b })
		})
	}
	t.Run("Partitions", func(t *testing.T) { partitions(t, nodes) })
	t.Run("Faults", func(t *testing.T) { faults(t, nodes) })
}

// inspectElsewhere checks that what one process was answered, another one sees at once, on another
// server.
func inspectElsewhere(t *testing.T, nodes testutil.ZooKeeperNodes) {
	leader := nodes.Leader()
	one := open(t, zkbackend.New([]string{nodes[(leader+1)%len(nodes)].Addr()}))
	other := open(t, zkbackend.New([]string{nodes[(leader+2)%len(nodes)].Addr()}))
	round := func(key string) error {
		g, err := one.Acquire(t.Context(), request(key, time.Minute))
		if err != nil {
			return err
		}
		st, err := other.Inspect(t.Context(), key)
		if err != nil {
			return err
		}
		if _, err := one.Release(t.Context(), g); err != nil {
			return err
		}
		free, err := other.Inspect(t.Context(), key)
		if err == nil && (st.Status != core.Held || st.Owner != g.Owner || free.Status != core.Free) {
			t.Fatalf("the key is %v after Acquire and %v after Release", st.Status, free.Status)
		}
		return err
	}
	for done, try := 0, 0; done < 100; try++ {
		if try-done > 20 {
			t.Fatalf("%d of %d rounds got no answer", try-done, try)
		}
		err := round("k" + strconv.Itoa(try-done)) // another key after a call without an answer
		if !isUnavailable(err) {
			ok(t, "a round", err)
			done++
		}
	}
}
