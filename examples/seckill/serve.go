package main

import (
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/onelane/onelane/core"
)

//go:embed page
var pageFiles embed.FS

// show is the page: three shops side by side, and the Redis nodes under the guarded one.
type show struct {
	sale, guarded, naive *lane
	nodes                []*node
	metrics              *metrics

	mu      sync.Mutex
	cancel  context.CancelFunc // ends the sale; nil while there is none
	changed chan struct{}      // closed when something is new; nil while nobody watches
	sales   sync.WaitGroup
	options options // of the latest sale
	began   int64   // when it began, in ms; 0 before the first
}

// serve shows the page at o.serve until ctx ends.
func serve(ctx context.Context, o options, stdout io.Writer) error {
	s, stop, err := newShow(ctx, o)
	if err != nil {
		return err
	}
	defer stop()
	listener, err := net.Listen("tcp", o.serve)
	if err != nil {
		return fmt.Errorf("-serve %s: %w", o.serve, err)
	}
	fmt.Fprintf(stdout, "Open http://%s in a browser. Metrics are at /metrics. Ctrl-C ends it.\n", visible(listener.Addr()))
	server := &http.Server{Handler: s.routes(), ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	done := make(chan struct{})
	end := context.AfterFunc(ctx, func() {
		defer close(done)
		s.end() // or shutDown waits for the crowd, which goes on buying
		shutDown(server)
	})
	defer end()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	<-done // Serve returns when Shutdown begins, and the Locker must outlive the requests
	return nil
}

// visible is an address that a browser on this machine can open.
func visible(a net.Addr) string {
	if tcp, ok := a.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		return net.JoinHostPort("localhost", strconv.Itoa(tcp.Port))
	}
	return a.String()
}

// newShow starts the nodes and the shops.
func newShow(ctx context.Context, o options) (s *show, stop func(), err error) {
	s = &show{options: o}
	var stops []func()
	stop = func() {
		s.end()
		s.sales.Wait()
		for _, f := range slices.Backward(stops) {
			f()
		}
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	dir, err := os.MkdirTemp("", "seckill")
	if err != nil {
		return s, stop, fmt.Errorf("cannot make a folder for SQLite: %w", err)
	}
	stops = append(stops, func() { _ = os.RemoveAll(dir) })

	// All of it shares one small machine: a node that is merely slow is not down.
	o.nodeTimeout = 3 * time.Second
	upstreams := strings.Split(o.redis, ",")
	if o.redis == "" {
		// The masters have just been started and never held a lock, so they need not abstain for one
		// TTL. Never set this for masters that may have restarted.
		o.newQuorum = true
		upstreams = nil
		for range 3 {
			m, err := embedRedis()
			if err != nil {
				return s, stop, err
			}
			upstreams, stops = append(upstreams, m.Addr()), append(stops, m.Close)
		}
	}
	if o.records == "" && len(upstreams) > 1 { // the masters keep locks only
		m, err := embedRedis()
		if err != nil {
			return s, stop, err
		}
		o.records, stops = m.Addr(), append(stops, m.Close)
	}
	var addrs []string
	for _, upstream := range upstreams {
		n, err := newNode(upstream)
		if err != nil {
			return s, stop, err
		}
		s.nodes, addrs, stops = append(s.nodes, n), append(addrs, n.addr), append(stops, n.close)
	}

	if s.metrics, err = newMetrics(); err != nil {
		return s, stop, err
	}
	stops = append(stops, s.metrics.close)
	quiet := core.WithLogger(slog.New(slog.DiscardHandler)) // what is refused is on the page
	masters, records := strings.Join(addrs, ","), cmp.Or(o.records, upstreams[0])
	for _, shop := range []struct {
		lane               **lane
		name, redis        string
		guarded, unguarded bool
		opts               []core.Option
	}{
		{&s.sale, "sale", records, false, false, []core.Option{quiet}},
		{&s.guarded, "guarded", masters, true, false,
			[]core.Option{quiet, core.WithTelemetry(s.metrics.provider, nil), core.WithClass(class)}},
		{&s.naive, "naive", "", false, true, nil},
	} {
		o.db, o.redis = "sqlite:"+filepath.Join(dir, shop.name+".db"), shop.redis
		o.guarded, o.unguarded = shop.guarded, shop.unguarded
		l, closeLane, err := newLane(ctx, o, s.thenWake, shop.opts...)
		if err != nil {
			return s, stop, err
		}
		*shop.lane = l
		stops = append(stops, closeLane)
	}
	return s, stop, nil
}

func (s *show) routes() http.Handler {
	files, err := fs.Sub(pageFiles, "page")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(files))
	mux.Handle("GET /metrics", s.metrics.handler)
	mux.HandleFunc("GET /api/events", s.events)
	mux.HandleFunc("POST /api/sale", s.start)
	mux.HandleFunc("DELETE /api/sale", func(w http.ResponseWriter, _ *http.Request) { s.end(); w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("PUT /api/nodes/{n}", s.setNode)
	for prefix, l := range map[string]*lane{"/sale": s.sale, "/guarded": s.guarded, "/naive": s.naive} {
		mux.Handle("POST "+prefix+"/orders", http.StripPrefix(prefix, l.handler))
	}
	return http.NewCrossOriginProtection().Handler(mux)
}

// maxSeconds is how long buyers may take to arrive, in seconds.
const maxSeconds = 600

// start begins a sale in all shops at once.
func (s *show) start(w http.ResponseWriter, r *http.Request) {
	// Before the lock: a client that is slow, or gone, must not stop the page.
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<12))
	if err != nil {
		http.Error(w, "the body cannot be read: "+err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.options
	seconds := int(o.over / time.Second)
	ask := struct{ Buyers, Stock, Submits, Clients, Seconds *int }{
		&o.buyers, &o.stock, &o.submits, &o.clients, &seconds,
	}
	if err := json.Unmarshal(body, &ask); err != nil {
		http.Error(w, "the body must be JSON: "+err.Error(), http.StatusBadRequest)
		return
	}
	if err := o.valid(); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if seconds < 0 || seconds > maxSeconds {
		said := fmt.Sprintf("seconds %d: it must be from 0 to %d", seconds, maxSeconds)
		http.Error(w, said, http.StatusBadRequest)
		return
	}
	o.over = time.Duration(seconds) * time.Second
	if s.cancel != nil {
		http.Error(w, "a sale is running", http.StatusConflict)
		return
	}
	lanes := []*lane{s.sale, s.guarded, s.naive}
	for _, l := range lanes {
		o.guarded, o.unguarded = l == s.guarded, l == s.naive
		if err := l.open(o); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	s.cancel, s.options, s.began = cancel, o, time.Now().UnixMilli()
	s.metrics.waits.reset(ctx)
	s.sales.Go(func() {
		var all sync.WaitGroup
		for _, l := range lanes {
			all.Go(func() { l.sell(ctx) })
		}
		all.Wait()
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.cancel = nil
		s.wake()
	})
	s.wake()
	w.WriteHeader(http.StatusAccepted)
}

// end stops a running sale.
func (s *show) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancel != nil {
		s.cancel()
	}
}

// setNode cuts a Redis off or brings it back.
func (s *show) setNode(w http.ResponseWriter, r *http.Request) {
	i, err := strconv.Atoi(r.PathValue("n"))
	var ask struct{ Up bool }
	if err != nil || i < 0 || i >= len(s.nodes) {
		http.Error(w, "there is no such node", http.StatusNotFound)
	} else if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<10)).Decode(&ask); err != nil {
		http.Error(w, "the body must be JSON: "+err.Error(), http.StatusBadRequest)
	} else if err := s.nodes[i].set(ask.Up); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	} else {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.wake()
		w.WriteHeader(http.StatusNoContent)
	}
}
