package pagetest

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// feed takes the place of the program's events: say sends the page a state.
func feed(t *testing.T, ctx context.Context) {
	t.Helper()
	do(t, ctx,
		chromedp.ActionFunc(func(ctx context.Context) error {
			_, err := page.AddScriptToEvaluateOnNewDocument(fakeEvents).Do(ctx)
			return err
		}),
		chromedp.Reload(),
	)
	until(t, ctx, `Boolean(window.source?.onmessage)`)
	say(t, ctx, `{}`)
}

// say sends a state: that before the first sale, with these changes.
func say(t *testing.T, ctx context.Context, changes string) {
	t.Helper()
	do(t, ctx, chromedp.Evaluate(fmt.Sprintf(`say(%s)`, changes), nil))
}

const fakeEvents = `
	window.EventSource = class { constructor() { window.source = this; } };
	const lane = {
		stock: 60, sold: 0, left: 60, oversold: 0, doubled: 0, ok: true, started: false, done: false, stopped: false,
		seconds: 0, requests: 0, created: 0, replayed: 0, refused: 0, sold_out: 0, errors: 0, p50_ms: 0, p99_ms: 0,
		stalled: 0, stalls: 0, refusals: 0, rate: 0,
	};
	window.say = ({ sale, naive, guarded, ...rest }) => source.onmessage({ data: JSON.stringify({
		running: false, began: 0, over: 30, waits: { locks: 0, p50_ms: 0, p99_ms: 0 },
		nodes: [1, 2, 3].map((n) => ({ addr: '127.0.0.1:' + n, up: true })),
		sale: { ...lane, ...sale }, naive: { ...lane, ...naive }, guarded: { ...lane, ...guarded }, ...rest,
	}) });`

// Naive code loses updates of the stock although nothing is oversold yet. That is not right.
func TestPage_BooksDoNotAddUp(t *testing.T) {
	address, _ := serve(t)
	ctx := browser(t, address, desktop)
	feed(t, ctx)
	say(t, ctx, `{
		naive: {started: true, done: true, seconds: 2, sold: 40, left: 57, ok: false},
		guarded: {started: true, done: true, seconds: 2, sold: 40, left: 20},
	}`)
	if got := eval[string](t, ctx, verdict("naive")); !strings.HasPrefix(got, "Wrong: ") || !strings.Contains(got, "57") {
		t.Errorf("books that do not add up are %q", got)
	}
	if got := eval[string](t, ctx, verdict("guarded")); !strings.HasPrefix(got, "Right: ") {
		t.Errorf("books that add up are %q", got)
	}
}

// Another tab has started a sale. This one says so, and goes on to say what is so now.
func TestPage_StartInTwoTabs(t *testing.T) {
	address, _ := serve(t)
	ctx := browser(t, address, desktop)
	feed(t, ctx) // this page does not hear of the sale yet
	answer, err := http.Post(address+"/api/sale", "application/json",
		strings.NewReader(`{"buyers":600,"stock":300,"seconds":60}`))
	if err != nil || answer.StatusCode != http.StatusAccepted {
		t.Fatal(answer, err)
	}
	_ = answer.Body.Close()
	do(t, ctx, chromedp.Evaluate(click, nil))
	until(t, ctx, `document.querySelector('#status').textContent.includes('a sale is running')`)
	if !eval[bool](t, ctx, `document.querySelector('#said').textContent.includes('a sale is running')`) {
		t.Error("a screen reader does not hear that the start was refused")
	}
	say(t, ctx, `{running: true, naive: {started: true}, guarded: {started: true}}`)
	say(t, ctx, `{naive: {started: true, done: true}, guarded: {started: true, done: true}}`)
	if !eval[bool](t, ctx, over) {
		t.Errorf("the sale is over, and the status is %q", eval[string](t, ctx, `document.querySelector('#status').textContent`))
	}
}

// asks replaces the requests of the page by a list of their methods.
func asks(t *testing.T, ctx context.Context) {
	t.Helper()
	do(t, ctx, chromedp.Evaluate(`window.asked = [];
		window.fetch = async (_, { method }) => { asked.push(method); return new Response('', { status: 202 }); };`, nil))
}

const saleRuns = `{running: true, naive: {started: true}, guarded: {started: true}}`

// A double click on Start starts a sale and does not stop it, although Start is Stop by then.
func TestPage_StartDoubleClick(t *testing.T) {
	address, _ := serve(t)
	ctx := browser(t, address, desktop)
	feed(t, ctx)
	asks(t, ctx)
	do(t, ctx, chromedp.Evaluate(click+`; say(`+saleRuns+`); `+click, nil))
	if got := eval[[]string](t, ctx, `asked`); !slices.Equal(got, []string{"POST"}) {
		t.Errorf("a double click on Start asked for %v", got)
	}
}

// Enter in a field starts a sale, as in any form. It does not stop one.
func TestPage_EnterInAField(t *testing.T) {
	address, _ := serve(t)
	ctx := browser(t, address, desktop)
	feed(t, ctx)
	asks(t, ctx)
	say(t, ctx, saleRuns)
	do(t, ctx, chromedp.Evaluate(`document.querySelector('#settings').open = true`, nil),
		chromedp.Focus("[name=buyers]"),
		// As a browser does it: no key press follows a key down that is prevented.
		input.DispatchKeyEvent(input.KeyDown).WithKey("Enter").WithText("\r").WithWindowsVirtualKeyCode(13))
	if got := eval[[]string](t, ctx, `asked`); len(got) > 0 {
		t.Errorf("Enter in a field of a running sale asked for %v", got)
	}
}

// A page that did not see a sale end, as a closed laptop, does not draw two sales as one.
func TestPage_ChartOfOneSale(t *testing.T) {
	address, _ := serve(t)
	ctx := browser(t, address, desktop)
	feed(t, ctx)
	sale := func(began, seconds, sold int) string {
		lane := fmt.Sprintf(`{started: true, seconds: %d, sold: %d, left: %d}`, seconds, sold, 60-sold)
		return fmt.Sprintf(`{running: true, began: %d, naive: %s, guarded: %s}`, began, lane, lane)
	}
	points := func(when string, want int) {
		t.Helper()
		got := eval[int](t, ctx, `document.querySelector('#chart .line.guarded')
			.getAttribute('points').split(' ').filter(Boolean).length`)
		if got != want {
			t.Errorf("%s the line has %d points, want %d", when, got, want)
		}
	}
	say(t, ctx, sale(1, 4, 30))
	say(t, ctx, sale(1, 5, 40))
	points("in a sale", 2)
	say(t, ctx, sale(2, 20, 10))
	points("after another sale began", 1)
	say(t, ctx, `{began: 0}`) // the program was started again
	points("in a program without a sale", 0)
}

// Enter that is held down on Start starts a sale, and does not stop it at the first repeat. That
// comes after 500 ms or more on most desktops.
func TestPage_EnterHeldDown(t *testing.T) {
	address, _ := serve(t)
	ctx := browser(t, address, desktop)
	feed(t, ctx)
	asks(t, ctx)
	say(t, ctx, saleRuns)
	enter := input.DispatchKeyEvent(input.KeyDown).WithKey("Enter").WithText("\r").WithWindowsVirtualKeyCode(13)
	do(t, ctx, chromedp.Focus("#start"), enter.WithAutoRepeat(true))
	if got := eval[[]string](t, ctx, `asked`); len(got) > 0 {
		t.Errorf("Enter that is held down on Start asked for %v", got)
	}
	do(t, ctx, enter) // pressed anew, it stops the sale
	if got := eval[[]string](t, ctx, `asked`); !slices.Equal(got, []string{"DELETE"}) {
		t.Errorf("Enter on Stop asked for %v", got)
	}
}
