// Package pagetest looks at the page of examples/seckill in a real browser, and at what its metrics say. It is a
// module of its own, so that nobody who uses the kit has a browser driver or a query engine among its dependencies.
package pagetest

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// serve starts the program and returns the address of its page.
func serve(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "seckill")
	build := exec.Command("go", "build", "-o", program, "./examples/seckill")
	build.Dir = "../.."
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	cmd := exec.Command(program, "-serve", "127.0.0.1:0")
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
	address, _, _ := strings.Cut(line[at:], " ")
	return address
}

// browser opens the page in headless Chromium, in a window of this width. Errors in the page fail the test.
func browser(t *testing.T, address string, width int64, dark bool) context.Context {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("Chromium is missing: apt-get install chromium")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.Flag("lang", "en"))...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	chromedp.ListenTarget(ctx, func(event any) {
		if thrown, ok := event.(*runtime.EventExceptionThrown); ok {
			t.Errorf("the page throws: %v", thrown.ExceptionDetails)
		}
	})
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	do(t, ctx,
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}),
		chromedp.EmulateViewport(width, 900),
		chromedp.Navigate(address),
		chromedp.WaitVisible("#nodes li"),
	)
	return ctx
}

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

func number(lane, name string) string {
	return fmt.Sprintf(`Number(document.querySelector('#%s [data-n=%s]').textContent.replaceAll(',', ''))`, lane, name)
}

// A visitor starts a sale and sees both verdicts, on a wide screen and on a telephone, by day and by night.
func TestPage_Sale(t *testing.T) {
	address := serve(t)
	for _, view := range []struct {
		name  string
		width int64
		dark  bool
	}{{"light-1280", 1280, false}, {"dark-1280", 1280, true}, {"light-360", 360, false}, {"dark-360", 360, true}} {
		t.Run(view.name, func(t *testing.T) {
			ctx := browser(t, address, view.width, view.dark)
			for range 5 { // that the naive shop sells too much is most likely, not certain
				do(t, ctx, chromedp.SetValue("[name=buyers]", "600"), chromedp.Click("#start"))
				until(t, ctx, `document.querySelector('#start').disabled`)
				until(t, ctx, `!document.querySelector('#start').disabled`)
				until(t, ctx, `document.querySelector('#guarded .verdict').classList.contains('good')`)
				if sold := eval[int](t, ctx, number("guarded", "sold")); sold != 100 {
					t.Errorf("the guarded shop sold %d of 100", sold)
				}
				if eval[int](t, ctx, number("naive", "oversold")) > 0 {
					break
				}
			}
			if eval[int](t, ctx, number("naive", "oversold")) == 0 || !eval[bool](t, ctx, `document.querySelector('#naive .verdict').classList.contains('bad')`) {
				t.Error("the naive shop did not oversell")
			}
			if wide := eval[int](t, ctx, `document.documentElement.scrollWidth`); wide > int(view.width) {
				t.Errorf("the page is %d wide in a window of %d", wide, view.width)
			}
			if got := eval[string](t, ctx, `document.documentElement.dataset.theme`); (got == "dark") != view.dark {
				t.Errorf("the theme is %q", got)
			}
			screenshot(t, ctx, view.name)
			do(t, ctx, chromedp.Click("#lang"))
			until(t, ctx, `document.querySelector('h1').textContent.includes('秒杀') && document.documentElement.lang === 'zh-CN'`)
			screenshot(t, ctx, view.name+"-zh")
		})
	}
}

// Two quick clicks are one order with the kit and two without.
func TestPage_BuyTwice(t *testing.T) {
	ctx := browser(t, serve(t), 1280, false)
	for _, shop := range []string{"naive", "guarded"} {
		do(t, ctx, chromedp.Evaluate(fmt.Sprintf(`(() => { const b = document.querySelector('#%s .buy'); b.click(); b.click(); })()`, shop), nil))
		until(t, ctx, fmt.Sprintf(`document.querySelectorAll('#%s li').length === 2`, shop))
	}
	do(t, ctx, chromedp.Click("#guarded .buy")) // after the answer: a replay
	until(t, ctx, `document.querySelectorAll('#guarded li').length === 3`)
	until(t, ctx, number("naive", "sold")+" === 2")
	until(t, ctx, number("guarded", "sold")+" > 0") // the figures of both shops come one after the other
	if sold := eval[int](t, ctx, number("guarded", "sold")); sold != 1 {
		t.Errorf("two clicks were %d orders with the kit", sold)
	}
	if last := eval[string](t, ctx, `document.querySelector('#guarded li:last-child').textContent`); !strings.Contains(last, "again") {
		t.Errorf("the third click was told %q", last)
	}
}

// With one node of three cut off it sells; with two it refuses; when they are back it sells again.
func TestPage_NodesCutOff(t *testing.T) {
	ctx := browser(t, serve(t), 1280, false)
	buy := func(says string) {
		t.Helper()
		do(t, ctx, chromedp.Click("#guarded .fresh"), chromedp.Click("#guarded .buy"))
		until(t, ctx, `document.querySelectorAll('#guarded li').length === 1`)
		if told := eval[string](t, ctx, `document.querySelector('#guarded li').textContent`); !strings.Contains(told, says) {
			t.Errorf("the buyer was told %q, want %q", told, says)
		}
	}
	node := func(n int, says string) {
		t.Helper()
		do(t, ctx, chromedp.Click(fmt.Sprintf("#nodes li:nth-child(%d) button", n)))
		until(t, ctx, fmt.Sprintf(`document.querySelector('#nodes li:nth-child(%d)').textContent.includes('%s')`, n, says))
	}
	node(1, "cut off")
	buy("taken")
	node(2, "cut off")
	buy("503")
	node(1, "up")
	node(2, "up")
	time.Sleep(time.Second) // clients redial
	buy("taken")
	until(t, ctx, number("guarded", "sold")+" === 2")
}

// Everything can be done with the keyboard, in the order of the page.
func TestPage_Keyboard(t *testing.T) {
	ctx := browser(t, serve(t), 1280, false)
	var names []string
	for range 20 {
		do(t, ctx, chromedp.KeyEvent("\t"))
		name := eval[string](t, ctx, `(() => { const e = document.activeElement; return e.id || e.name || e.className || e.textContent; })()`)
		names = append(names, name)
	}
	all := strings.Join(names, " ")
	for _, want := range []string{"lang theme buyers stock submits start", "buy fresh", "Cut off Cut off Cut off"} {
		if !strings.Contains(all, want) {
			t.Errorf("the order of the Tab key is %q, without %q", all, want)
		}
	}
	do(t, ctx, chromedp.Focus("[name=buyers]"), chromedp.KeyEvent("\r"))
	until(t, ctx, `document.querySelector('#start').disabled`)
	until(t, ctx, `!document.querySelector('#start').disabled`)
}
