import { draw } from "./chart.js";
import { texts } from "./texts.js";

const $ = (selector, root = document) => root.querySelector(selector);
const stored = (name) => { try { return localStorage.getItem(name); } catch { return null; } };
const store = (name, value) => { try { localStorage.setItem(name, value); } catch { /* private window: not kept */ } };

let language = stored("language") ?? (navigator.language.startsWith("zh") ? "zh" : "en");
let latest = null; // the latest state
let samples = []; // of the latest sale, for the chart
let offline = false;
let problem = ""; // why the program refused what was asked
const names = ["sale", "guarded", "naive"];
const lane = (name) => document.getElementById(name === "sale" ? "sale-lane" : name); // the form is the sale
const shops = Object.fromEntries(names.map((name) => [name, { root: document.getElementById(`${name}-shop`), answers: [], key: freshKey() }]));
const main = ["sold", "oversold", "doubled", "rate"];
const folded = {
  sale: ["left", "requests", "replayed", "refused", "sold_out", "errors", "p99_ms"],
  naive: ["left", "requests", "sold_out", "errors", "p99_ms"],
  guarded: ["left", "requests", "replayed", "refused", "sold_out", "errors", "p99_ms", "wait50", "wait99"],
};

function freshKey() { return `"${Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("")}"`; }

function fresh(shop) { shop.key = freshKey(); shop.answers = []; answers(shop); }

// figures adds a cell for each number to a list.
function figures(list, numbers) {
  for (const number of numbers) {
    const cell = document.createElement("div");
    cell.innerHTML = `<dt data-t="${number}"></dt><dd data-n="${number}"></dd>`;
    list.append(cell);
  }
}

for (const name of names) {
  const root = lane(name), shop = shops[name];
  root.append($("#lane").content.cloneNode(true));
  Object.assign($("h2", root), { id: `${name}-title` }).dataset.t = name;
  figures($(".main", root), main);
  figures($(".small", root), folded[name]);
  shop.root.append($("#shop").content.cloneNode(true));
  $(".buy", shop.root).addEventListener("click", () => buy(name));
  $(".fresh", shop.root).addEventListener("click", () => fresh(shop));
}
figures($("#trouble"), ["stalled", "stalls", "refusals"]);

// setText changes an element only if the text differs, so that screen readers say only what is new.
function setText(element, text) { if (element.textContent !== text) element.textContent = text; }

function translate() {
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  const t = texts[language];
  for (const element of document.querySelectorAll("[data-t]")) setText(element, t[element.dataset.t]);
  setText($("#lang"), t.language);
  $("#lang").lang = language === "zh" ? "en" : "zh-CN";
  document.title = `onelane: ${t.title}`;
  Object.values(shops).forEach(answers);
  render();
}

// answers keeps the items, so that screen readers say only what is new.
function answers(shop) {
  const t = texts[language].answer, list = $("ol", shop.root);
  while (list.children.length > shop.answers.length) list.lastChild.remove();
  shop.answers.forEach(([kind, n], i) => {
    const item = list.children[i] ?? list.appendChild(document.createElement("li"));
    setText(item, typeof t[kind] === "function" ? t[kind](n) : t[kind]);
  });
}

const majority = (state) => state.nodes.filter((node) => node.up).length > state.nodes.length / 2;

// verdict returns the sentence about a lane, and how good or bad its news is.
function verdict(name, t) {
  const s = latest[name], number = (n) => n.toLocaleString(t.number);
  if (s.error) return ["bad", t.books(s.error)];
  const counts = t.counts({
    sold: number(s.sold), of: s.started ? number(s.stock) : "", none: s.oversold === 0, oversold: number(s.oversold),
    nobody: s.doubled === 0, doubled: number(s.doubled),
  });
  // Naive code also loses updates of the stock.
  const wrong = s.oversold || s.doubled, lost = !wrong && s.done && !s.ok;
  const [kind, lead] =
    wrong || lost ? ["bad", t.wrong] :
    s.stopped ? ["", t.stopped] :
    s.started && !s.done ? name === "guarded" && !majority(latest) ? ["warn", t.stalledNow] : ["", t.selling] :
    s.started ? s.errors ? ["warn", t.partial] : ["good", t.right] : ["", t.ready];
  const sentences = lost ? [lead, counts, t.lost(number(s.left))] : [lead, counts];
  return [kind, sentences.join(language === "zh" ? "" : " ")];
}

function status(t) {
  if (offline) return t.offline;
  if (problem) return problem;
  if (!latest?.guarded.started) return t.idle;
  return latest.running ? t.running({ seconds: Math.floor(latest.guarded.seconds).toLocaleString(t.number) }) : t.over;
}

function render() {
  const t = texts[language];
  setText($("#status"), status(t));
  if (offline || problem) setText($("#said"), status(t));
  $("#start").disabled = offline || !latest;
  setText($("#start"), latest?.running ? t.stop : t.start);
  if (!latest) return;
  const values = { ...latest.guarded, wait50: latest.waits.p50_ms, wait99: latest.waits.p99_ms };
  for (const name of names) {
    const root = lane(name), [kind, sentence] = verdict(name, t);
    numbers(root, name === "guarded" ? values : latest[name], t);
    $(".verdict", root).className = `verdict ${kind}`;
    setText($(".verdict", root), sentence);
  }
  // A screen reader hears the verdicts when the sale is over, not every figure on the way.
  const over = latest.guarded.started && !latest.running;
  if (!offline && !problem) setText($("#said"), over ? names.map((name) => `${t[name]}: ${verdict(name, t)[1]}`).join(" ") : "");
  numbers($("#trouble"), values, t);
  setText($("#last"), values.last_error ? t.lastError(values.last_error) : t.noError);
  $("#last").classList.toggle("bad", Boolean(values.last_error));
  nodes(t);
  chart(t);
}

function numbers(root, values, t) {
  for (const cell of root.querySelectorAll("dd")) {
    const n = cell.dataset.n, v = values[n];
    setText(cell, n.endsWith("_ms") || n.startsWith("wait") ? t.ms(v) : n === "rate" ? t.perSecond(Math.round(v).toLocaleString(t.number)) : v.toLocaleString(t.number));
    cell.classList.toggle("bad", (n === "oversold" || n === "doubled") && v > 0);
    cell.classList.toggle("warn", (n === "stalled" || n === "refusals") && v > 0);
  }
}

function chart(t) {
  const svg = $("#chart"), { sale, naive, guarded, over } = latest;
  const stock = guarded.started ? guarded.stock : Number($("[name=stock]").value) || guarded.stock;
  const seconds = guarded.started ? over : Number($("[name=seconds]").value);
  const most = draw(svg, { samples, stock, seconds }, t);
  $("#outage-key").hidden = samples.every((s) => s.majority);
  svg.setAttribute("aria-label", t.chart({ most, stock, sale: sale.sold, naive: naive.sold, guarded: guarded.sold }));
}

function nodes(t) {
  const list = $("#nodes");
  latest.nodes.forEach((node, i) => {
    let item = list.children[i];
    if (!item) {
      item = document.createElement("li");
      item.append(document.createElement("span"), document.createElement("button"));
      $("button", item).addEventListener("click", () => send("PUT", `api/nodes/${i}`, { up: !latest.nodes[i].up }));
      list.append(item);
    }
    item.title = node.addr;
    setText($("span", item), `${t.node} ${i + 1}: ${node.up ? t.up : t.down}`);
    $("span", item).className = node.up ? "" : "bad";
    setText($("button", item), node.up ? t.cut : t.back);
    $("button", item).setAttribute("aria-label", `${node.up ? t.cut : t.back}: ${t.node} ${i + 1}`);
  });
}

async function send(method, url, body) {
  try {
    const answer = await fetch(url, { method, body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });
    problem = answer.ok ? "" : await answer.text();
  } catch (error) {
    problem = error.message;
  }
  render();
}

// Each new order is another buyer's: one buyer with two orders counts as charged twice.
async function buy(name) {
  const shop = shops[name], line = ["waiting"], buyer = `you-${shop.key.slice(1, -1)}`;
  shop.answers = [...shop.answers, line].slice(-20);
  answers(shop);
  try {
    const answer = await fetch(`${name}/orders`, {
      method: "POST", body: '{"units":1}',
      headers: { "Content-Type": "application/json", Authorization: `Bearer ${buyer}`, "Idempotency-Key": shop.key },
    });
    const { order, code, detail, error, title } = await answer.json();
    if (answer.status === 201) line.splice(0, 2, answer.headers.get("Idempotency-Replayed") ? "replayed" : "created", order);
    else if (code?.endsWith("_in_flight")) line[0] = "flight";
    else if (answer.status === 410) line[0] = "gone";
    else line.splice(0, 2, "other", `HTTP ${answer.status}, ${detail ?? error ?? title}`);
  } catch (error) {
    line.splice(0, 2, "other", error.message);
  }
  answers(shop);
}

let pressed = -Infinity; // when Start was last pressed
$("#sale").addEventListener("submit", (event) => {
  event.preventDefault();
  // Start is Stop for the second click of a double click.
  const again = event.timeStamp - pressed < 500;
  pressed = event.timeStamp;
  if (again) return;
  if (latest.running) return send("DELETE", "api/sale");
  const sale = Object.fromEntries([...new FormData(event.target)].map(([k, v]) => [k, Number(v)]));
  return send("POST", "api/sale", { ...sale, clients: 20 });
});
$("#sale").addEventListener("keydown", (event) => {
  // Enter in a field starts a sale, and stops none. Nor does Enter that is held down.
  if (event.key === "Enter" && (event.repeat || event.target.matches("input") && latest?.running)) event.preventDefault();
});
$("#sale").addEventListener("invalid", () => { $("#settings").open = true; }, true);
$("#sale").addEventListener("input", render);

$("#lang").addEventListener("click", () => { language = language === "zh" ? "en" : "zh"; store("language", language); translate(); });

function theme(name) { document.documentElement.dataset.theme = name; }
theme(stored("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
$("#theme").addEventListener("click", () => {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  theme(next);
  store("theme", next);
});
addEventListener("resize", render);

// The program sends the state several times a second during a sale. Otherwise it is silent until something changes.
const events = new EventSource("api/events");
events.onmessage = (event) => {
  const state = JSON.parse(event.data);
  if (latest && latest.began !== state.began) {
    // The books are new. An old key would get the answer to an order that is gone.
    samples = [];
    Object.values(shops).forEach(fresh);
  }
  if (offline || latest?.running !== state.running) problem = ""; // it is out of date
  offline = false;
  latest = state;
  const { sale, guarded, naive } = latest, at = Math.max(...names.map((name) => latest[name].seconds)), last = samples.at(-1);
  if (guarded.started && at !== last?.at) {
    // A sale may stall for hours.
    if (samples.length > 4000) samples = samples.filter((_, i) => i % 2 === 0);
    // A page that is opened in the middle of a sale has not seen its start.
    if (!samples.length && at < 1) samples.push({ at: 0, sale: 0, naive: 0, guarded: 0, majority: majority(latest) });
    samples.push({ at, sale: sale.sold, naive: naive.sold, guarded: guarded.sold, majority: majority(latest) });
  }
  render();
};
events.onerror = () => { offline = true; render(); };

translate();
