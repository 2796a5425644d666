package pagetest

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// belowFold lists the parts of the result that are not on the first screen.
const belowFold = `[
	'#start', '#status', '#sale-lane .verdict', '#sale-lane .main',
	'#guarded .verdict', '#guarded .main', '#naive .verdict', '#naive .main',
].filter((s) => {
	const box = document.querySelector(s).getBoundingClientRect();
	return scrollY > 0 || box.height === 0 || box.top < 0 || box.bottom > innerHeight;
})`

// paleTexts lists the visible texts whose contrast with their background is below 4.5 to 1. The
// background of a text in the chart is the worst of all areas on which it may lie.
const paleTexts = `(() => {
	const rgb = (color) => color.match(/[\d.]+/g).map(Number);
	const light = (color) => rgb(color).slice(0, 3).map((v) => v / 255)
		.map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
		.reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
	const contrast = (a, b) => {
		const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
		return (x + 0.05) / (y + 0.05);
	};
	const ground = (e) => {
		for (; e; e = e.parentElement) {
			const color = getComputedStyle(e).backgroundColor;
			if (!/^rgba\(.*, 0\)$/.test(color)) return color;
		}
		return 'rgb(255, 255, 255)';
	};
	const areas = [...document.querySelectorAll('#chart rect')].map((e) => getComputedStyle(e).fill);
	const pale = [];
	let seen = 0;
	const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	while (walker.nextNode()) {
		const text = walker.currentNode.textContent.trim(), e = walker.currentNode.parentElement;
		if (!text || !e.checkVisibility() || e.closest('template, script')) continue;
		seen++;
		const inChart = e.closest('#chart'), style = getComputedStyle(e);
		for (const on of [ground(e), ...(inChart ? areas : [])]) {
			const c = contrast(inChart ? style.fill : style.color, on);
			if (c < 4.5 || style.opacity !== '1') pale.push(text + ' (' + c.toFixed(2) + ')');
		}
	}
	if (seen < 20) pale.push('only ' + seen + ' texts were found');
	return pale;
})()`

// axes reads the chart as a person does: by the labels of the axis it says which number the end of
// each line has.
const axes = `(() => {
	const ticks = [...document.querySelectorAll('#chart text.units')];
	const at = (e) => [Number(e.getAttribute('y')), Number(e.textContent.replaceAll(',', ''))];
	const [y0, v0] = at(ticks[0]), [y1, v1] = at(ticks.at(-1));
	const units = (y) => v0 + (v1 - v0) * (y - y0) / (y1 - y0);
	const figures = {
		least: v0, most: v1,
		ticks: ticks.length, times: document.querySelectorAll('#chart text.time').length,
		stock: units(Number(document.querySelector('#chart .limit').getAttribute('y1'))),
	};
	for (const lane of ['naive', 'guarded', 'sale']) {
		const line = document.querySelector('#chart .line.' + lane);
		const points = line.getAttribute('points').split(' ');
		figures[lane] = units(Number(points.at(-1).split(',')[1]));
		figures[lane + '_highest'] = Math.max(...points.map((p) => units(Number(p.split(',')[1]))));
	}
	return figures;
})()`

// Both lines are drawn on one scale with labelled axes.
func TestPage_OneScale(t *testing.T) {
	address, _ := serve(t)
	ctx := browser(t, address, desktop)
	set(t, ctx, 200, 50, 2)
	do(t, ctx, chromedp.Click("#start"))
	until(t, ctx, over)
	if charts := eval[int](t, ctx, `document.querySelectorAll('svg').length`); charts != 1 {
		t.Errorf("there are %d charts, each with a scale of its own", charts)
	}
	read := eval[map[string]float64](t, ctx, axes)
	if read["least"] != 0 || read["ticks"] < 3 || read["times"] < 3 {
		t.Errorf("the axes are not labelled: %v", read)
	}
	near := func(name string, want float64) {
		t.Helper()
		if off := read[name] - want; off < -1 || off > 1 {
			t.Errorf("by the axis %s is %.1f, and it is %v", name, read[name], want)
		}
	}
	near("stock", 50)
	for lane, id := range map[string]string{"naive": "naive", "guarded": "guarded", "sale": "sale-lane"} {
		near(lane, float64(eval[int](t, ctx, number(id, "sold"))))
		if read[lane+"_highest"] > read["most"]+1 {
			t.Errorf("%s leaves the scale: %v", lane, read)
		}
	}
}

// As long as a sale runs, from its first moment, each lane says in one sentence what was sold,
// oversold and charged twice.
func TestPage_SentenceFromTheStart(t *testing.T) {
	address, _ := serve(t)
	ctx := browser(t, address, desktop)
	do(t, ctx, chromedp.Evaluate(`window.said = [];
		new MutationObserver(() => {
			if (!document.querySelector('#start').textContent.startsWith('Stop')) return;
			for (const lane of ['sale-lane', 'naive', 'guarded']) {
				said.push(document.querySelector('#' + lane + ' .verdict').textContent);
			}
		}).observe(document.querySelector('main'), {
			subtree: true, childList: true, characterData: true,
		});`, nil))
	set(t, ctx, 60, 20, 2)
	do(t, ctx, chromedp.Click("#start"))
	until(t, ctx, `said.length > 0 && `+over)
	const sentence = `/^(Selling|Wrong|Right): \d+ sold of 20, (none|\d+) oversold, (nobody|\d+) charged twice\.$/`
	wrong := eval[[]string](t, ctx, `said.filter((s) => !`+sentence+`.test(s))`)
	if len(wrong) > 0 {
		t.Errorf("the lanes said %q", wrong)
	}
}

// Without a sale the page has no timer, no animation and no event, and the program needs no processor
// time.
func TestPage_Idle(t *testing.T) {
	address, process := serve(t)
	ctx := browser(t, address, desktop)
	set(t, ctx, 100, 20, 1)
	ticks := eval[int](t, ctx, `window.ticks`)
	do(t, ctx, chromedp.Click("#start"))
	until(t, ctx, over)
	if eval[int](t, ctx, `window.ticks`) == ticks {
		t.Error("the test does not see the events of a sale")
	}
	const quiet, most = 3 * time.Second, 150 * time.Millisecond
	for try := 1; ; try++ { // what the sale left behind ends first
		ticks, before := eval[int](t, ctx, `window.ticks`), processorTime(t, process)
		time.Sleep(quiet) // the length of the measurement
		used, more := processorTime(t, process)-before, eval[int](t, ctx, `window.ticks`)-ticks
		if used <= most && more == 0 {
			break
		}
		if try == 5 {
			t.Errorf("in %v the idle page had %d timers, frames or events, and the program used %v of processor time", quiet, more, used)
			break
		}
	}
	if n := eval[int](t, ctx, `document.getAnimations().length`); n != 0 {
		t.Errorf("%d animations run", n)
	}
}

// processorTime is what a process has used so far, by Linux's clock of 100 ticks a second.
func processorTime(t *testing.T, process int) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", process))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	var user, system int64
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		t.Fatal(err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}

// Both languages have the same texts, and every text that the page names is there.
func TestPage_LanguagesInStep(t *testing.T) {
	address, _ := serve(t)
	ctx := browser(t, address, desktop)
	do(t, ctx, chromedp.Evaluate(`import('/texts.js').then((m) => { window.texts = m.texts; })`, nil))
	until(t, ctx, `Boolean(window.texts)`)
	wrong := eval[[]string](t, ctx, `(() => {
		const flat = (o, path = '') => Object.entries(o).flatMap(([k, v]) => {
			if (v && typeof v === 'object') return flat(v, path + k + '.');
			const kind = typeof v === 'function' ? 'function of ' + v.length : typeof v;
			return [path + k + ': ' + (v === '' ? 'empty' : kind)];
		});
		const [en, zh] = [flat(texts.en), flat(texts.zh)];
		const named = [...document.querySelectorAll('[data-t]')].map((e) => e.dataset.t);
		return [
			...en.filter((k) => !zh.includes(k)).map((k) => 'zh lacks ' + k),
			...zh.filter((k) => !en.includes(k)).map((k) => 'en lacks ' + k),
			...en.concat(zh).filter((k) => k.endsWith('empty')),
			...named.filter((k) => !(k in texts.en)).map((k) => 'the page names ' + k),
			...(en.length < 40 ? ['only ' + en.length + ' texts were found'] : []),
		];
	})()`)
	if len(wrong) > 0 {
		t.Errorf("%q", wrong)
	}
}

// A sale that stalls for a night still has a chart.
func TestPage_LongSale(t *testing.T) {
	address, _ := serve(t)
	ctx := browser(t, address, desktop)
	do(t, ctx, chromedp.Evaluate(`Promise.all([import('/chart.js'), import('/texts.js')]).then(([{ draw }, { texts }]) => {
		const samples = Array.from({ length: 200000 }, (_, i) => ({ at: i / 4, naive: 50, guarded: 20, sale: 20, majority: true }));
		draw(document.querySelector('#chart'), { samples, stock: 50, seconds: 30 }, texts.en);
		window.drawn = 'yes';
	}).catch((error) => { window.drawn = String(error); })`, nil))
	until(t, ctx, `Boolean(window.drawn)`)
	if got := eval[string](t, ctx, `window.drawn`); got != "yes" {
		t.Errorf("the chart of a long sale: %q", got)
	}
}
