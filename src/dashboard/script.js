// Script of the dashboard. It requests metrics relative to its own address, and renders them into #fleeting, on any page.
//
// 1. Names and keys may come from untrusted clients: all texts are set through textContent, never as HTML.
// 2. A missing number is shown as a dash, and an answer other than 200 as a sentence.
// 3. Browsers open six connections to a server, and a stream takes one. So one of all tabs receives the stream and
//    forwards its events to the others (`share`). A tab that receives nothing polls.

// Time without an event after which a tab polls, and interval of polls, in ms; longest pause between retries, in s.
const SILENCE = 12_000, POLL = 2_000, LONGEST_PAUSE = 15;
const relative = path => new URL(path, import.meta.url);

// --- Receiving ---------------------------------------------------------------------------------------------------

// Receives a stream of events in one of all tabs. In each tab, it calls `onEvent(name, data)` for each event,
// and `onProblem(sentence, seconds)` if the stream fails and is retried after `seconds`. `current()` returns the last
// message for tabs that join later. Returns null if the browser cannot do this, as on a page over plain HTTP.
export function share(address, { onEvent, onProblem, current = () => null }) {
  if (!navigator.locks || !window.BroadcastChannel) return null;
  const name = `fleeting ${address}`;
  const channel = new BroadcastChannel(name);
  let isLeader = false;
  const broadcast = message => { channel.postMessage(message); deliver(message); };
  const deliver = message => {
    if (message.problem) onProblem(message.problem, message.seconds);
    else if (message.name) onEvent(message.name, message.data);
  };
  channel.onmessage = ({ data }) => {
    if (!data.ask) return deliver(data);
    const answer = isLeader ? current() : null;
    if (answer) channel.postMessage(answer);
  };
  // This tab holds the lock until it is closed; then another tab gets it.
  navigator.locks.request(name, async () => {
    isLeader = true;
    for (let pause = 0; ;) {
      const began = performance.now();
      let problem = await listen(address, (name, data) => {
        pause = 0;
        broadcast({ name, data });
      });
      // Without a pause, a stream that always ends at once would be requested in a busy loop.
      const lasted = performance.now() - began;
      if (!problem && lasted > 1000) continue;
      if (lasted > SILENCE) pause = 0;
      problem ??= "The stream was interrupted.";
      pause = Math.min(2 * pause || 1, LONGEST_PAUSE);
      broadcast({ problem, seconds: pause });
      await wait(pause * 1000);
    }
  });
  return { ask: () => channel.postMessage({ ask: true }) };
}

// Reads the stream until it ends; returns a sentence if there is a problem. It uses `fetch`, because an EventSource does
// not retry after an error of a proxy, and does not report the status.
async function listen(address, onEvent) {
  const stop = new AbortController();
  let timeout, hasEvents = false;
  const restartTimer = () => {
    clearTimeout(timeout);
    timeout = setTimeout(() => stop.abort(), 2 * SILENCE);
  };
  restartTimer();
  try {
    const answer = await fetch(address, { signal: stop.signal, headers: { accept: "text/event-stream" } });
    const problem = refusal(answer, "text/event-stream");
    if (problem) return problem;
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = ""; ;) {
      const { value, done } = await reader.read();
      // A stream that ends without an event counts as a failure.
      if (done) return hasEvents ? null : "The service ended the stream.";
      restartTimer();
      const events = (text + value).split("\n\n");
      text = events.pop();
      for (const event of events) {
        let name = "message", data = "";
        for (const line of event.split("\n")) {
          if (line.startsWith("event:")) name = line.slice(6).trim();
          if (line.startsWith("data:")) data += line.slice(5).trimStart();
        }
        if (!data) continue;
        hasEvents = true;
        onEvent(name, JSON.parse(data));
      }
    }
  } catch {
    return hasEvents && !stop.signal.aborted ? null : "The service is unreachable.";
  } finally {
    clearTimeout(timeout);
    stop.abort();
  }
}

// Describes the problem of an answer as a sentence; null if there is none.
export function refusal(answer, type) {
  const status = answer.status;
  if (status === 401 || status === 403) return `Access denied (${status}): log in again.`;
  if (status === 429) return "The service rejects the request: too many requests (429).";
  if (status >= 502 && status <= 504) return `A proxy cannot reach the service (${status}).`;
  if (!answer.ok) return `The service answers with ${status}.`;
  if (!(answer.headers.get("content-type") ?? "").startsWith(type)) {
    return "The answer is not from the service: possibly a login page.";
  }
  return null;
}

// Waits, but not longer than until the user returns to the page or the browser is online again.
function wait(ms) {
  return new Promise(resolve => {
    const end = () => {
      clearTimeout(timer);
      removeEventListener("online", end);
      document.removeEventListener("visibilitychange", end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    addEventListener("online", end);
    document.addEventListener("visibilitychange", end);
  });
}

// --- State -------------------------------------------------------------------------------------------------------

const POINTS = 300;
let all = null, shownAt = null, lastEventAt = -Infinity;
const place = document.getElementById("fleeting");
const state = document.getElementById("fleeting-state");
const key = group => `${group.kind} ${group.name}`;

const shared = share(relative("stream").href, {
  onEvent(name, data) {
    lastEventAt = performance.now();
    if (name === "figures") showAll(data);
    else addSample(data);
  },
  onProblem(sentence, seconds) {
    // A visible tab polls on its own, and shows the result of that.
    lastEventAt = -Infinity;
    if (document.hidden) showProblem(sentence, seconds);
  },
  current: () => all && { name: "figures", data: all },
});

function showAll(figures) {
  all = figures;
  setState("live", `Live. fleeting ${figures.version}.`);
  draw();
}

function addSample(sample) {
  if (!all || sample.boot !== all.boot || sample.number !== all.number + 1) {
    // This tab missed a sample: request everything from the tab with the stream. An older sample is ignored.
    if (!all || sample.boot !== all.boot || sample.number > all.number) shared.ask();
    return;
  }
  const known = new Map(all.groups.map(group => [key(group), group.history]));
  for (const group of sample.groups) {
    group.history = known.get(key(group)) ?? {};
    for (const line of ["expired", "evicted", "allowed", "denied"]) {
      if (group.rates[line] === undefined) continue;
      const points = group.history[line] ??= [];
      points.push(group.rates[line]);
      points.splice(0, points.length - POINTS);
    }
  }
  all = sample;
  setState("live", `Live. fleeting ${sample.version}.`);
  draw();
}

// Polls while no event arrives.
async function poll() {
  for (let pause = 0; ;) {
    if (document.hidden || performance.now() - lastEventAt <= SILENCE) {
      pause = 0;
    } else {
      const problem = await ask();
      pause = problem ? Math.min(2 * pause || 2, LONGEST_PAUSE) : 0;
      // The stream may have returned in the meantime.
      if (problem && performance.now() - lastEventAt > SILENCE) showProblem(problem, pause);
    }
    await wait(Math.max(POLL, pause * 1000));
  }
}

// Requests the metrics once; returns a sentence if there is a problem.
async function ask() {
  try {
    const answer = await fetch(relative("figures"), { signal: AbortSignal.timeout(SILENCE) });
    const problem = refusal(answer, "application/json");
    if (!problem) showAll(await answer.json());
    return problem;
  } catch {
    return "The service is unreachable.";
  }
}

function showProblem(sentence, seconds) {
  const old = shownAt ? ` Showing data from ${shownAt.toLocaleTimeString("en-GB")}.` : "";
  setState("problem", `${sentence} Next try in ${seconds} s.${old}`);
}

function setState(kind, sentence) {
  if (kind === "live") shownAt = new Date();
  state.className = kind;
  // Only on a change: screen readers announce every assignment.
  if (state.textContent !== sentence) state.textContent = sentence;
}

// --- Rendering ---------------------------------------------------------------------------------------------------

const SVG = "http://www.w3.org/2000/svg";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const is = number => typeof number === "number" && Number.isFinite(number);
const count = number => !is(number) ? "–" : Math.abs(number) < 1e6 ? whole.format(number) : short.format(number);
const rate = number => !is(number) ? "–" : number < 10 && number % 1 ? number.toFixed(1) : count(number);
const share100 = ratio => is(ratio) ? `${(100 * ratio).toFixed(1)} %` : "–";
const time = ms => !is(ms) ? "–"
  : ms < 10 ? `${+ms.toFixed(2)} ms` : ms < 10_000 ? `${count(ms)} ms` : `${count(ms / 1000)} s`;

export function make(tag, attributes = {}, ...children) {
  const element = ["svg", "path"].includes(tag)
    ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// A text whose direction (left to right or right to left) does not affect the text around it.
const isolated = (text, kind = "") => make("bdi", { class: kind, title: text }, text);

const KINDS = {
  cache: ["Caches", ["expired", "evicted"], "Expired and evicted"],
  limiter: ["Limiters", ["allowed", "denied"], "Allowed and denied"],
  redis_cache: ["Caches on Redis, as this process sees them", ["expired"], "Expired"],
  redis_limiter: ["Limiters on Redis, as this process sees them", ["allowed", "denied"], "Allowed and denied"],
};

// For each metric: its label, its value, and a note.
const FIGURES = {
  cache: ({ counts, levels, rates, recent }) => [
    ["Entries", count(levels.entries), levels.weight !== levels.entries ? `weight ${count(levels.weight)}` : `${count(rates.sets)} set/s`],
    ["Hit ratio", share100(recent.hit_ratio), is(recent.hit_ratio) ? `last minute, ${rate(rates.reads)} reads/s` : "no reads in the last minute"],
    ["Expired/s", rate(rates.expired), `${count(counts.expired)} total`],
    ["Evicted/s", rate(rates.evicted), `${count(counts.evicted)} total`],
    ["Event lag, p50", time(recent.lag_p50_ms), is(recent.lag_p50_ms) ? `p99 ${time(recent.lag_p99_ms)}, last minute` : levels.subscribers ? "no event in the last minute" : "no subscribers"],
    ["Sweeps/s", rate(rates.sweeps), is(recent.sweep_p99_ms) ? `p99 ${time(recent.sweep_p99_ms)}` : "none in the last minute"],
  ],
  limiter: ({ counts, levels, rates, recent }) => [
    ["Allowed/s", rate(rates.allowed), `${count(counts.allowed)} total`],
    ["Denied/s", rate(rates.denied), `${count(counts.denied)} total`],
    ["Denied, share", share100(recent.denied_ratio), is(recent.denied_ratio) ? "last minute" : "no calls in the last minute"],
    ["Keys", count(levels.keys), "in memory"],
  ],
  redis_cache: ({ counts, rates, recent }) => [
    ["Hit ratio", share100(recent.hit_ratio), is(recent.hit_ratio) ? `last minute, ${rate(rates.reads)} reads/s` : "no reads in the last minute"],
    ["Hits", count(counts.hits), `${count(counts.misses)} misses`],
    ["Expired/s", rate(rates.expired), is(counts.expired) ? `${count(counts.expired)} total` : "no subscribers in this process"],
  ],
  redis_limiter: ({ counts, rates, recent }) => [
    ["Allowed/s", rate(rates.allowed), `${count(counts.allowed)} total`],
    ["Denied/s", rate(rates.denied), `${count(counts.denied)} total`],
    ["Denied, share", share100(recent.denied_ratio), is(recent.denied_ratio) ? "last minute" : "no calls in the last minute"],
  ],
};

// Further metrics, in a table that can be expanded.
const MORE = {
  cache: ({ counts, levels, rates }) => [
    ["Hits", count(counts.hits)], ["Misses", count(counts.misses)], ["Set", count(counts.sets)],
    ["Removed", count(counts.removed)], ["Replaced", count(counts.replaced)],
    ["Max. expiry delay", time(levels.staleness_ms)],
    ["Examined by sweeps/s", count(rates.looked_at)], ["Subscribers", count(levels.subscribers)],
    ["Missed by slow subscribers", count(counts.missed)], ["Lossless events above capacity", count(levels.overflow)],
  ],
  limiter: ({ counts }) => [
    ["Admitted after waiting", count(counts.waited)], ["Would be denied (dry run)", count(counts.shadowed)],
    ["Checks of keys above max_keys", count(counts.overflowed)],
  ],
};

const cards = new Map(), sections = new Map();
let isScheduled = false;

// At most once per frame, and not at all in a hidden tab.
function draw() {
  if (isScheduled) return;
  isScheduled = true;
  requestAnimationFrame(() => {
    isScheduled = false;
    const seen = new Set();
    for (const group of all.groups) {
      seen.add(key(group));
      let card = cards.get(key(group));
      if (!card) cards.set(key(group), card = cardOf(group));
      card.show(group);
    }
    for (const [name, card] of cards) {
      if (seen.has(name)) continue;
      card.element.remove();
      cards.delete(name);
    }
    for (const { element, list } of sections.values()) element.hidden = !list.childElementCount;
    nothing.hidden = cards.size > 0;
  });
}

const nothing = make("p", { class: "soft" }, "This process has no cache and no limiter.");
nothing.hidden = true;
place.replaceChildren(nothing);

function sectionOf(kind) {
  let section = sections.get(kind);
  if (!section) {
    const id = `fleeting-${kind}`;
    const list = make("div", { class: "cards" });
    const element = make("section", { "aria-labelledby": id }, make("h2", { id }, KINDS[kind][0]), list);
    sections.set(kind, section = { element, list });
    // In the order of the kinds.
    for (const kind of Object.keys(KINDS)) if (sections.has(kind)) place.append(sections.get(kind).element);
  }
  return section;
}

let ids = 0;

function cardOf({ kind, name }) {
  const id = `fleeting-card-${++ids}`;
  const heading = make("h3", { id }, isolated(name));
  const figures = rowsOf("dl", "figures", ([label], value, note) =>
    make("div", {}, make("dt", {}, label), value, note),
  () => make("dd", { class: "big" }), () => make("dd", { class: "soft" }));
  const chart = chartOf(KINDS[kind][2], KINDS[kind][1]);
  const element = make("article", { class: "card", "aria-labelledby": id }, heading, figures.element, chart.element);
  const denied = kind.endsWith("limiter") ? deniedOf() : null;
  if (denied) element.append(denied.element);
  const more = MORE[kind] && rowsOf("tbody", "", ([label], value) =>
    make("tr", {}, make("th", { scope: "row" }, label), value), () => make("td"));
  if (more) {
    element.append(make("details", {}, make("summary", {}, "More metrics"), make("table", {}, more.element)));
  }
  let search = null;
  const list = sectionOf(kind).list;
  const after = [...list.children].find(other => other.dataset.name > name);
  element.dataset.name = name;
  list.insertBefore(element, after ?? null);
  return {
    element,
    show(group) {
      figures.show(FIGURES[kind](group));
      chart.show(group.history);
      denied?.show(group.denied_keys);
      more?.show(MORE[kind](group));
      if (group.levels.searchable && !search) element.append(search = searchOf(name));
    },
  };
}

// Rows of a label and texts, created when first shown. Only changed texts are set.
function rowsOf(tag, kind, rowOf, ...cellsOf) {
  const element = make(tag, kind ? { class: kind } : {});
  let rows = null;
  return {
    element,
    show(all) {
      rows ??= all.map(row => {
        const cells = cellsOf.map(cellOf => cellOf());
        element.append(rowOf(row, ...cells));
        return cells;
      });
      all.forEach(([, ...texts], row) => texts.forEach((text, cell) => set(rows[row][cell], text)));
    },
  };
}

function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function chartOf(title, lines) {
  const top = make("span"), half = make("span");
  const middle = make("path", { class: "middle", d: "M0,50H299" });
  const area = make("path", { class: "area" });
  const paths = lines.map((_, line) => make("path", { class: line ? "second" : "first" }));
  const plot = make("svg", { class: "plot", viewBox: "0 0 299 100", preserveAspectRatio: "none", "aria-hidden": "true" }, middle, area, ...paths);
  const legend = make("div", { class: "legend axis" }, ...lines.map((line, number) => make("span", {},
    make("svg", { viewBox: "0 0 24 8", "aria-hidden": "true" }, make("path", { class: number ? "second" : "first", d: "M0,4H24" })), `${line}/s`)));
  const caption = make("figcaption");
  const element = make("figure", { class: "chart" }, legend,
    make("div", { class: "y axis", "aria-hidden": "true" }, top, half, make("span", {}, "0/s")), plot,
    make("div", { class: "x axis", "aria-hidden": "true" }, make("span", {}, "5 min ago"), make("span", {}, "now")), caption);
  return {
    element,
    show(history) {
      const all = lines.map(line => (history[line] ?? []).filter(is));
      const peak = Math.max(0, ...all.flat());
      const most = above(peak);
      set(top, `${rate(most)}/s`);
      set(half, `${rate(most / 2)}/s`);
      all.forEach((points, line) => {
        const first = POINTS - points.length;
        const d = points.map((point, at) => `${first + at},${(100 - 100 * point / most).toFixed(2)}`).join("L");
        paths[line].setAttribute("d", d ? `M${d}` : "");
        if (!line) area.setAttribute("d", d ? `M${first},100L${d}L299,100Z` : "");
      });
      // Text alternative of the chart for screen readers.
      const words = lines.map((line, at) => `${line} ${rate(all[at].at(-1))}, max. ${rate(Math.max(0, ...all[at]))}`);
      set(caption, `${title} per second over the last five minutes. Now: ${words.join("; ")}.`);
    },
  };
}

// The smallest of 1, 2, 5, 10, 20, 50, ... that is at least `number`.
function above(number) {
  let most = 1;
  for (let step = 0; most < number; step++) most = [1, 2, 5][step % 3] * 10 ** Math.floor(step / 3);
  return most;
}

function deniedOf() {
  const ROWS = 5;
  const rows = Array.from({ length: ROWS }, () => make("tr", {}, make("td", {}, "–"), make("td")));
  const element = make("table", {}, make("caption", { class: "soft" }, "Denied most often in the last two minutes"),
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Key"), make("th", { scope: "col" }, "Denials"))),
    make("tbody", {}, ...rows));
  return {
    element,
    show(keys) {
      rows.forEach((row, at) => {
        const denied = keys[at];
        const text = !denied ? (at ? "\u00a0" : "None.") : denied.plain ? denied.key : `# ${denied.key}`;
        if (row.cells[0].textContent !== text) {
          row.cells[0].replaceChildren(isolated(text, denied ? "code" : "soft"));
        }
        set(row.cells[1], denied ? `${count(denied.denials)}` : "\u00a0");
      });
    },
  };
}

function searchOf(name) {
  const input = make("input", { name: "key", required: "", autocomplete: "off", spellcheck: "false" });
  const answer = make("output", { class: "soft" }, "\u00a0");
  const form = make("form", {}, make("label", {}, "TTL of a key", input),
    make("button", { class: "quiet" }, "Search"), answer);
  form.addEventListener("submit", async event => {
    event.preventDefault();
    const key = input.value;
    const show = (...words) => answer.replaceChildren(...words);
    try {
      const response = await fetch(relative("ttl"), {
        method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ name, key }),
      });
      const isOurs = (response.headers.get("content-type") ?? "").startsWith("application/json");
      const reply = isOurs ? await response.json() : {};
      if (!response.ok) show(reply.error ?? refusal(response, "application/json"));
      else if (reply.ttl === "missing") show(isolated(key), " has no live value.");
      else if (reply.ttl === "persistent") show(isolated(key), " has no deadline.");
      else show(isolated(key), ` expires in ${time(reply.ms)}.`);
    } catch {
      show("The service is unreachable.");
    }
  });
  return form;
}

if (shared) {
  shared.ask();
  // The tab with the stream answers immediately. If no answer comes within 3 s, this tab polls.
  lastEventAt = performance.now() - SILENCE + 3_000;
}
poll();
