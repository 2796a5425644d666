package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/onelane/onelane/examples/grpc/orderpb"
	"github.com/onelane/onelane/grpclock"
	"github.com/onelane/onelane/idempotency"
)

// answer is what a client sees, over either transport.
type answer struct {
	order    string // its ID
	replayed bool
	inFlight bool // the first still runs
	taken    bool
	err      error // anything else
}

// clients are a client of each transport.
type clients struct {
	http string
	conn *grpc.ClientConn
	grpc orderpb.OrdersClient
}

func newClients(httpAddr, grpcAddr string) (*clients, error) {
	conn, err := grpc.NewClient("passthrough:///"+grpcAddr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	return &clients{http: "http://" + httpAddr, conn: conn, grpc: orderpb.NewOrdersClient(conn)}, nil
}

func (c *clients) close() {
	_ = c.conn.Close()
	http.DefaultClient.CloseIdleConnections()
}

// create orders a thing over HTTP or gRPC.
func (c *clients) create(ctx context.Context, overHTTP bool, user, key string) answer {
	if overHTTP {
		return c.post(ctx, "/orders?item="+url.QueryEscape("tea for "+user), user, key)
	}
	return c.call(ctx, user, key, func(ctx context.Context, opt grpc.CallOption) (*orderpb.Order, error) {
		return c.grpc.Create(ctx, &orderpb.CreateRequest{Item: "tea for " + user}, opt)
	})
}

// grab takes an order over HTTP or gRPC.
func (c *clients) grab(ctx context.Context, overHTTP bool, driver, id string) answer {
	if overHTTP {
		return c.post(ctx, "/orders/"+id+"/grab", driver, "")
	}
	return c.call(ctx, driver, "", func(ctx context.Context, opt grpc.CallOption) (*orderpb.Order, error) {
		return c.grpc.Grab(ctx, &orderpb.GrabRequest{OrderId: id}, opt)
	})
}

func (c *clients) post(ctx context.Context, path, user, key string) (a answer) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.http+path, nil)
	if err != nil {
		return answer{err: err}
	}
	req.Header.Set("Authorization", "Bearer "+user)
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{err: err}
	}
	var body struct{ ID, Code, Error string }
	_ = json.Unmarshal(text, &body)
	a = answer{order: body.ID, replayed: resp.Header.Get("Idempotency-Replayed") == "true"}
	switch {
	case resp.StatusCode < 300:
	case body.Code == idempotency.CodeInFlight:
		a.inFlight = true
	case body.Error == errTaken.Error():
		a.taken = true
	default:
		a.err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	return a
}

func (c *clients) call(ctx context.Context, user, key string, do func(context.Context, grpc.CallOption) (*orderpb.Order, error)) (a answer) {
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+user)
	if key != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "idempotency-key", key)
	}
	var trailer metadata.MD
	o, err := do(ctx, grpc.Trailer(&trailer))
	a = answer{order: o.GetId(), replayed: len(trailer["idempotency-replayed"]) > 0}
	st := status.Convert(err)
	reason := ""
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.Domain == grpclock.Domain {
			reason = info.Reason
		}
	}
	switch {
	case err == nil:
	case reason == strings.ToUpper(idempotency.CodeInFlight):
		a.inFlight = true
	case st.Code() == codes.FailedPrecondition && st.Message() == errTaken.Error():
		a.taken = true
	default:
		a.err = err
	}
	return a
}

// result counts what the clients saw and what is in the book.
type result struct {
	customers, grabbed                 int
	requests, replayed, refused, taken int
	errs                               []error
	orders, doubled, twice             int // in the book
}

func (r *result) add(a answer) {
	r.requests++
	switch {
	case a.err != nil:
		r.errs = append(r.errs, a.err)
	case a.inFlight:
		r.refused++
	case a.taken:
		r.taken++
	case a.replayed:
		r.replayed++
	}
}

// broken reports whether an invariant did not hold.
func (r *result) broken() bool {
	return len(r.errs) > 0 || r.orders != r.customers || r.doubled > 0 || r.twice > 0 || r.replayed < r.customers
}

func (r *result) print(w io.Writer) {
	fmt.Fprintf(w, "%d customers click twice and retry, half of them over HTTP and half over gRPC; 8 drivers grab each of %d orders\n\n", r.customers, r.grabbed)
	for _, line := range []struct {
		name, says string
		n          int
	}{
		{"requests", "over HTTP and gRPC", r.requests},
		{"replayed", "retries that got the first answer again", r.replayed},
		{"refused", "duplicates while the first was under way", r.refused},
		{"taken", "drivers who came too late", r.taken},
		{"errors", "", len(r.errs)},
	} {
		fmt.Fprintf(w, "%12s %6d  %s\n", line.name, line.n, line.says)
	}
	if len(r.errs) > 0 {
		fmt.Fprintf(w, "\nThe first error: %v\n", errors.Join(r.errs[:1]...))
	}
	fmt.Fprintf(w, "\nThe book says: %d orders of %d customers, %d of them with two or more, %d orders given away twice.\n", r.orders, r.customers, r.doubled, r.twice)
}

// crowd lets all clients loose at once.
func (c *clients) crowd(ctx context.Context, o options, b *book) result {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r := result{customers: o.customers, grabbed: o.orders}
	var mu sync.Mutex
	note := func(a answer) {
		mu.Lock()
		defer mu.Unlock()
		r.add(a)
	}
	each(o.customers, func(i int) {
		user, overHTTP := fmt.Sprint("customer ", i), i%2 == 0
		key := fmt.Sprint("order-of-", i)
		each(2, func(int) { note(c.create(ctx, overHTTP, user, key)) }) // a double click
		note(c.create(ctx, overHTTP, user, key))                        // a retry
	})
	each(o.orders, func(i int) {
		each(8, func(d int) { note(c.grab(ctx, d%2 == 0, fmt.Sprint("driver ", d), strconv.Itoa(i+1))) })
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	of := map[string]int{}
	for _, o := range b.orders {
		of[o.Customer]++
	}
	for _, n := range of {
		if n > 1 {
			r.doubled++
		}
	}
	for _, n := range b.taken {
		if n > 1 {
			r.twice++
		}
	}
	r.orders = len(b.orders)
	return r
}

// each runs do n times at once.
func each(n int, do func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { do(i) })
	}
	wg.Wait()
}
