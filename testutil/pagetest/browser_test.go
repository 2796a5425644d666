package pagetest

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// program builds the example once and returns its path.
func program(t *testing.T) string {
	t.Helper()
	build.Do(func() {
		cmd := exec.Command("go", "build", "-o", filepath.Join(folder, "seckill"), "./examples/seckill")
		cmd.Dir = "../.."
		if said, err := cmd.CombinedOutput(); err != nil {
			errBuild = fmt.Errorf("%w: %s", err, said)
		}
	})
	if errBuild != nil {
		t.Fatal(errBuild)
	}
	return filepath.Join(folder, "seckill")
}

var (
	build    sync.Once
	errBuild error
	folder   string // for the program
)

func TestMain(m *testing.M) {
	var err error
	if folder, err = os.MkdirTemp("", "pagetest"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(folder)
	os.Exit(code)
}

// serve starts the program and returns the address of its page, and the process.
func serve(t *testing.T) (address string, process int) {
	t.Helper()
	cmd := exec.Command(program(t), "-serve", "127.0.0.1:0")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the program did not end well: %v", err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	at := strings.Index(line, "http://")
	if err != nil || at < 0 {
		t.Fatalf("%v: it says %q", err, line)
	}
	address, _, _ = strings.Cut(line[at:], " ")
	return address, cmd.Process.Pid
}

// view is a window and a color scheme.
type view struct {
	name          string
	width, height int64
	dark          bool
}

var (
	desktop = view{"light-1280", 1280, 800, false}
	phone   = view{"light-360", 360, 640, false}
	views   = []view{
		desktop, {"dark-1280", 1280, 800, true}, phone, {"dark-360", 360, 640, true},
	}
)

// browser opens the page in headless Chromium. Errors in the page fail the test. The page counts its
// timers, animation frames and events in window.ticks.
func browser(t *testing.T, address string, v view) context.Context {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("Chromium is missing: apt-get install chromium")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.Flag("lang", "en"),
		chromedp.WSURLReadTimeout(2*time.Minute))...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	chromedp.ListenTarget(ctx, func(event any) {
		if thrown, ok := event.(*runtime.EventExceptionThrown); ok {
			t.Errorf("the page throws: %v", thrown.ExceptionDetails)
		}
	})
	scheme := "light"
	if v.dark {
		scheme = "dark"
	}
	do(t, ctx,
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{
			Name: "prefers-color-scheme", Value: scheme,
		}}),
		chromedp.ActionFunc(func(ctx context.Context) error {
			_, err := page.AddScriptToEvaluateOnNewDocument(countTicks).Do(ctx)
			return err
		}),
		chromedp.EmulateViewport(v.width, v.height),
		chromedp.Navigate(address),
		chromedp.WaitVisible("#nodes li"),
	)
	return ctx
}

const countTicks = `window.ticks = 0;
	for (const name of ['setTimeout', 'setInterval', 'requestAnimationFrame', 'requestIdleCallback']) {
		const real = window[name];
		window[name] = (...args) => { window.ticks++; return real.apply(window, args); };
	}
	const RealSource = window.EventSource;
	window.EventSource = class extends RealSource {
		constructor(...args) {
			super(...args);
			this.addEventListener('message', () => { window.ticks++; });
		}
	};`

func do(t *testing.T, ctx context.Context, actions ...chromedp.Action) {
	t.Helper()
	if err := chromedp.Run(ctx, actions...); err != nil {
		t.Fatal(err)
	}
}

// eval is what an expression is in the page.
func eval[T any](t *testing.T, ctx context.Context, expression string) (v T) {
	t.Helper()
	do(t, ctx, chromedp.Evaluate(expression, &v))
	return v
}

// until waits for an expression to be true in the page.
func until(t *testing.T, ctx context.Context, expression string) {
	t.Helper()
	for began := time.Now(); !eval[bool](t, ctx, expression); time.Sleep(50 * time.Millisecond) {
		if time.Since(began) > 60*time.Second {
			t.Fatalf("still not true: %s\n%s", expression, eval[string](t, ctx, "document.body.innerText"))
		}
	}
}

// screenshot keeps a picture of the whole page where ONELANE_SCREENSHOTS says, and is not all of one colour.
func screenshot(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	var picture []byte
	do(t, ctx, chromedp.FullScreenshot(&picture, 100))
	if len(picture) < 20_000 {
		t.Errorf("the screenshot has %d bytes: the page is empty", len(picture))
	}
	if dir := os.Getenv("ONELANE_SCREENSHOTS"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, name+".png"), picture, 0o644); err != nil {
			t.Error(err)
		}
	}
}
