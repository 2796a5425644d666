//go:build unix

package idempotency_test

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glebarez/sqlite"
	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/core/redisbackend"
	"github.com/onelane/onelane/core/sqlbackend"
	"github.com/onelane/onelane/gormlock"
	"github.com/onelane/onelane/idempotency"
	"github.com/onelane/onelane/internal/check"
	"github.com/onelane/onelane/testutil"
)

var moments = []string{check.BeforeHandler, check.BeforeEffect, check.AfterEffect, check.BeforeRecord, check.AfterRecord, check.AfterAnswer}

// payment is a service whose handler has one effect. The process that dies and the one that serves the
// retry have one each.
type payment struct {
	Redis   string // its address, or "" for the lock table
	Prefix  string // The prefix of the keys there.
	Table   string // Or the file of a database with locks.
	Effects string // A file with a line for each effect, or a database for modeOnce.
	Mode    string
	TTL     time.Duration // Of the claim.
	Dies    string        // The moment of its death, or empty.
}

const (
	modeRefuse   = "default"
	modeRecover  = "Recover"
	modeRunAgain = "RunAgain"
	modeOnce     = "RunAgain and gormlock.Once"
)

var modes = []string{modeRefuse, modeRecover, modeRunAgain, modeOnce}

// childPayment is set for the process that dies. It is this test binary, started again.
const childPayment = "ONELANE_TEST_PAYMENT"

// init does not return in a child.
func init() {
	text := os.Getenv(childPayment)
	if text == "" {
		return
	}
	check.EndWithParent()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	var p payment
	err := json.Unmarshal([]byte(text), &p)
	if err == nil {
		var h http.Handler
		if h, _, err = p.handler(); err == nil {
			fmt.Println(httptest.NewServer(h).URL)
			select {}
		}
	}
	fmt.Println(err)
	os.Exit(1)
}

// handler returns the service, and a function that ends it.
func (p *payment) handler() (http.Handler, func(), error) {
	var closers []func() error
	end := func() {
		for _, c := range slices.Backward(closers) {
			_ = c()
		}
	}
	db := func(file string) (*gorm.DB, error) {
		conns, err := sql.Open(sqlite.DriverName, "file:"+file+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_txlock=immediate")
		if err != nil {
			return nil, err
		}
		closers = append(closers, conns.Close)
		db, err := gorm.Open(&sqlite.Dialector{Conn: conns}, &gorm.Config{Logger: logger.Discard})
		if err != nil {
			return nil, err
		}
		return db, errors.Join(gormlock.Migrate(db), sqlbackend.Migrate(context.Background(), conns))
	}
	var opener core.Opener
	if p.Table != "" {
		locks, err := db(p.Table)
		if err != nil {
			return nil, end, err
		}
		conns, err := locks.DB()
		if err != nil {
			return nil, end, err
		}
		opener = sqlbackend.New(conns)
	} else {
		c := redis.NewClient(&redis.Options{Addr: p.Redis})
		closers = append(closers, c.Close)
		b := redisbackend.New(c)
		b.NodeTimeout = 10 * time.Second // the machine may be busy
		opener = b
	}
	locker, err := core.New(check.DyingBackend(opener, p.Dies), core.WithTTL(p.TTL),
		core.WithPrefix(p.Prefix), core.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, end, err
	}
	closers = append(closers, locker.Close)
	opts := []idempotency.HTTPOption{idempotency.WithLocker(locker)}
	pay := p.inFile
	switch p.Mode {
	case modeRecover:
		opts = append(opts, idempotency.Recover(p.tell))
	case modeRunAgain:
		opts = append(opts, idempotency.RunAgain())
	case modeOnce:
		opts = append(opts, idempotency.RunAgain())
		effects, err := db(p.Effects)
		if err == nil {
			err = effects.Use(gormlock.New(locker))
		}
		if err == nil {
			err = effects.Exec("CREATE TABLE IF NOT EXISTS effects (id TEXT)").Error
		}
		if err != nil {
			return nil, end, err
		}
		pay = func(r *http.Request) (string, error) { return p.inDatabase(r, effects) }
	}
	protected := idempotency.ByHeader("Idempotency-Key", opts...)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, err := pay(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, answer)
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		protected.ServeHTTP(w, r)
		_ = http.NewResponseController(w).Flush()
		check.Dies(p.Dies, check.AfterAnswer)
	}), end, nil
}

// inFile has its effect in a file.
func (p *payment) inFile(*http.Request) (string, error) {
	check.Dies(p.Dies, check.BeforeEffect)
	f, err := os.OpenFile(p.Effects, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if _, err := fmt.Fprintln(f, "paid"); err != nil {
		return "", err
	}
	check.Dies(p.Dies, check.AfterEffect)
	return fmt.Sprint("paid by ", os.Getpid()), nil
}

// inDatabase has its effect in a transaction of gormlock.Once.
func (p *payment) inDatabase(r *http.Request, db *gorm.DB) (string, error) {
	check.Dies(p.Dies, check.BeforeEffect)
	answer, err := gormlock.Once(r.Context(), db, gormlock.ClaimKey(r.Context(), "pay"), func(tx *gorm.DB) (string, error) {
		return fmt.Sprint("paid by ", os.Getpid()), tx.Exec("INSERT INTO effects (id) VALUES ('paid')").Error
	})
	if err == nil {
		check.Dies(p.Dies, check.AfterEffect)
	}
	return answer, err
}

// tell is the Recover function: it looks at the effects, as one asks a payment provider.
func (p *payment) tell(w http.ResponseWriter, r *http.Request, earlier idempotency.Run) idempotency.Recovery {
	b, err := os.ReadFile(p.Effects)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return idempotency.RunHandler
	case err != nil || earlier.Instance == "" || earlier.Begun.IsZero():
		return idempotency.StillUnknown
	}
	fmt.Fprintf(w, "told: %d", strings.Count(string(b), "\n"))
	return idempotency.Answered
}

// effects returns how many effects there were.
func (p *payment) effects(t *testing.T) int {
	t.Helper()
	if p.Mode == modeOnce {
		db, err := sql.Open(sqlite.DriverName, "file:"+p.Effects)
		must(t, err)
		defer db.Close()
		var n int
		must(t, db.QueryRow("SELECT COUNT(*) FROM effects").Scan(&n))
		return n
	}
	b, err := os.ReadFile(p.Effects)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Count(string(b), "\n")
}

// post sends the payment.
func post(url string) (body, code string, err error) {
	r, err := http.NewRequest(http.MethodPost, url+"/pay", strings.NewReader(`{"cents":700}`))
	if err != nil {
		return "", "", err
	}
	r.Host = "pay.example" // the two processes are one service
	r.Header.Set("Idempotency-Key", `"k"`)
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}).Do(r)
	if err != nil {
		return "", "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		var refusal idempotency.Refusal
		if err := json.Unmarshal(b, &refusal); err != nil {
			return "", "", fmt.Errorf("%d %s", resp.StatusCode, b)
		}
		return "", refusal.Code, nil
	}
	if resp.Header.Get("Idempotency-Replayed") == "true" {
		code = "replay"
	}
	return string(b), code, err
}

// dies lets a child serve the payment, and returns the answer if there was one. It reports whether the
// child died at its moment. A child whose lease ended before that lives on, or dies with another answer.
func (p payment) dies(t *testing.T) (answer string, died bool) {
	t.Helper()
	text, err := json.Marshal(p)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childPayment+"="+string(text))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	defer in.Close()
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	url, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	answer, code, postErr := post(strings.TrimSpace(url))
	if answer == "" || p.Dies != check.AfterAnswer {
		in.Close() // ends a child that lives on
	}
	err = cmd.Wait()
	if ctx.Err() != nil {
		t.Fatalf("the process ended with %v, %s", err, url)
	}
	died = check.Killed(err)
	if died && code == "" && (answer != "") == (p.Dies == check.AfterAnswer) {
		return answer, true
	}
	t.Logf("with a lease of %v, the process %s got %q %q, %v and ended with %v", p.TTL, url, answer, code, postErr, err)
	return "", false
}

// Whenever the process dies, the retry that another process serves gets the truth, and nothing
// happens twice. The exception is RunAgain alone, which says that a second run does no harm.
func TestCrash(t *testing.T) {
	t.Parallel()
	one := testutil.Redis(t)
	if !one.Real() {
		t.Log("miniredis serves the locks")
	}
	var mu sync.Mutex
	table := map[string]string{}
	t.Cleanup(func() {
		var b bytes.Buffer
		for _, line := range slices.Sorted(maps.Keys(table)) {
			fmt.Fprintf(&b, "%s -> %s\n", line, table[line])
		}
		t.Logf("what the retry gets, and how many effects there were:\n%s", b.String())
	})
	slots := make(chan struct{}, 8)
	for _, backend := range []string{"one Redis", "database"} {
		for i, moment := range moments {
			for _, mode := range modes {
				t.Run(backend+"/"+mode+"/"+moment, func(t *testing.T) {
					t.Parallel()
					slots <- struct{}{}
					defer func() { <-slots }()
					dir := t.TempDir()
					got := crash(t, moment, func(try int) payment {
						p := payment{Prefix: fmt.Sprint(mode, i, try, ":"), Mode: mode, Effects: filepath.Join(dir, fmt.Sprint("effects", try))}
						switch backend {
						case "one Redis":
							p.Redis = one.Addr()
						default:
							p.Table = filepath.Join(dir, fmt.Sprint("locks", try, ".db"))
						}
						return p
					})
					mu.Lock()
					defer mu.Unlock()
					table[fmt.Sprintf("%-12s %-27s %d %-36s", backend, mode, i+1, moment)] = got
				})
			}
		}
	}
}

// crash runs one case, and says what came out. On a busy machine, the child may lose its lease before
// its moment. Then crash tries another payment, with a longer lease.
func crash(t *testing.T, moment string, fresh func(try int) payment) string {
	t.Helper()
	var p payment
	var first string
	ttl := 1500 * time.Millisecond
	for try := 1; ; try++ {
		p = fresh(try)
		dying := p
		dying.TTL, dying.Dies = ttl, moment
		var died bool
		if first, died = dying.dies(t); died {
			break
		}
		if try == 3 {
			t.Fatal("the process did not die at its moment")
		}
		ttl *= 4
	}
	p.TTL = time.Minute // nothing waits for the end of this lease
	h, end, err := p.handler()
	defer end()
	must(t, err)
	server := httptest.NewServer(h)
	defer server.Close()
	retry := func() (body, code string) {
		for until := time.Now().Add(ttl + 30*time.Second); ; time.Sleep(50 * time.Millisecond) {
			body, code, err := post(server.URL)
			must(t, err)
			wait := code == idempotency.CodeInFlight || code == idempotency.CodeLockUnavailable // the machine is busy
			if !wait || time.Now().After(until) {
				return body, code
			}
		}
	}
	body, code := retry()
	effects, happened := p.effects(t), moment != check.BeforeHandler && moment != check.BeforeEffect
	wantCode, wantEffects := "", 1
	switch {
	case moment == check.AfterRecord:
		wantCode = "replay"
	case p.Mode == modeRefuse:
		wantCode = idempotency.CodeOutcomeUnknown
		if !happened {
			wantEffects = 0
		}
	case p.Mode == modeRunAgain && happened:
		wantEffects = 2
	case p.Mode == modeRecover && happened:
		if body != "told: 1" {
			t.Errorf("the retry got %q", body)
		}
	case p.Mode == modeOnce && happened:
		if body == fmt.Sprint("paid by ", os.Getpid()) || first != "" && body != first {
			t.Errorf("the retry got %q, the first request %q", body, first)
		}
	}
	if code != wantCode || effects != wantEffects {
		t.Errorf("the retry got %q %q after %d effects, want %q and %d effects", body, code, effects, wantCode, wantEffects)
	}
	// The outcome of the first retry stays.
	again, codeAgain := retry()
	if code == "" && (again != body || codeAgain != "replay") || p.effects(t) != effects {
		t.Errorf("the second retry got %q %q after %d effects", again, codeAgain, p.effects(t))
	}
	if code == "" {
		code = strings.TrimRight(body, "0123456789")
	}
	return fmt.Sprintf("%s, %d", code, effects)
}
