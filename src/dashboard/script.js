// The dashboard. It asks for what is beside this file, and puts it into #fleeting, on whatever page that is.
//
// 1. Texts come from strangers: all go through textContent, none through HTML.
// 2. What is no number is shown as a dash, and an answer that is not 200 as a sentence.
// 3. A browser has six connections to a server, and a stream takes one. So of all tabs one listens, and tells the others
//    (`share`); one that hears nothing asks by itself.

const SILENCE = 12_000, POLL = 2_000, LONGEST_PAUSE = 15;
const beside = path => new URL(path, import.meta.url);

// --- What is listened to -----------------------------------------------------------------------------------------

// Listens to a stream of events, of all tabs in one. `heard(name, data)` is called for each event in each tab,
// `trouble(sentence, seconds)` where there is none and when it is tried again. Null where a browser can't do that, as
// on a page that came by plain HTTP from another machine.
export function share(address, { heard, trouble, asked = () => null }) {
  if (!navigator.locks || !window.BroadcastChannel) return null;
  const name = `fleeting ${address}`;
  const channel = new BroadcastChannel(name);
  let leads = false;
  const tell = message => { channel.postMessage(message); take(message); };
  const take = message => {
    if (message.trouble) trouble(message.trouble, message.seconds);
    else if (message.name) heard(message.name, message.data);
  };
  channel.onmessage = ({ data }) => {
    if (!data.ask) return take(data);
    const answer = leads ? asked() : null;
    if (answer) channel.postMessage(answer);
  };
  // The lock is ours until this tab is closed. Then another has it.
  navigator.locks.request(name, async () => {
    leads = true;
    for (let pause = 0; ;) {
      const began = performance.now();
      let problem = await listen(address, (name, data) => {
        pause = 0;
        tell({ name, data });
      });
      // One that always ends at once would else be asked for as fast as it ends.
      const lasted = performance.now() - began;
      if (!problem && lasted > 1000) continue;
      if (lasted > SILENCE) pause = 0;
      problem ??= "The stream breaks off.";
      pause = Math.min(2 * pause || 1, LONGEST_PAUSE);
      tell({ trouble: problem, seconds: pause });
      await wait(pause * 1000);
    }
  });
  return { ask: () => channel.postMessage({ ask: true }) };
}

// Until the stream ends; the sentence that says what is wrong, if anything is. By `fetch`, since an EventSource gives up
// for good where a proxy answers for the service, and does not say what was answered.
async function listen(address, heard) {
  const stop = new AbortController();
  let alarm, came = false;
  const alive = () => {
    clearTimeout(alarm);
    alarm = setTimeout(() => stop.abort(), 2 * SILENCE);
  };
  alive();
  try {
    const answer = await fetch(address, { signal: stop.signal, headers: { accept: "text/event-stream" } });
    const problem = refusal(answer, "text/event-stream");
    if (problem) return problem;
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = ""; ;) {
      const { value, done } = await reader.read();
      // One that ends at once is no answer.
      if (done) return came ? null : "The service ended the stream.";
      alive();
      const events = (text + value).split("\n\n");
      text = events.pop();
      for (const event of events) {
        let name = "message", data = "";
        for (const line of event.split("\n")) {
          if (line.startsWith("event:")) name = line.slice(6).trim();
          if (line.startsWith("data:")) data += line.slice(5).trimStart();
        }
        if (!data) continue;
        came = true;
        heard(name, JSON.parse(data));
      }
    }
  } catch {
    return came && !stop.signal.aborted ? null : "The service can't be reached.";
  } finally {
    clearTimeout(alarm);
    stop.abort();
  }
}

// What is wrong with an answer, as a sentence.
export function refusal(answer, type) {
  const status = answer.status;
  if (status === 401 || status === 403) return `This is not allowed (${status}): log in anew.`;
  if (status === 429) return "The service says that this asks too often (429).";
  if (status >= 502 && status <= 504) return `A proxy can't reach the service (${status}).`;
  if (!answer.ok) return `The service answers with ${status}.`;
  if (!(answer.headers.get("content-type") ?? "").startsWith(type)) {
    return "What answers is not the service: perhaps a page to log in.";
  }
  return null;
}

// A pause, which ends sooner where somebody comes back to the page.
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

// --- What is known -----------------------------------------------------------------------------------------------

const POINTS = 300;
let all = null, shownAt = null, lastWord = -Infinity;
const place = document.getElementById("fleeting");
const state = document.getElementById("fleeting-state");
const key = group => `${group.kind} ${group.name}`;

const shared = share(beside("stream").href, {
  heard(name, data) {
    lastWord = performance.now();
    if (name === "figures") begin(data);
    else goOn(data);
  },
  trouble(sentence, seconds) {
    // Whoever is seen asks by itself meanwhile, and tells what comes of it.
    lastWord = -Infinity;
    if (document.hidden) complain(sentence, seconds);
  },
  asked: () => all && { name: "figures", data: all },
});

function begin(figures) {
  all = figures;
  say("live", `Live. fleeting ${figures.version}.`);
  draw();
}

function goOn(sample) {
  if (!all || sample.boot !== all.boot || sample.number !== all.number + 1) {
    // This tab has missed something, and the one that listens knows it. A sample that it has is no news.
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
  say("live", `Live. fleeting ${sample.version}.`);
  draw();
}

// Where nobody tells anything.
async function poll() {
  for (let pause = 0; ;) {
    if (document.hidden || performance.now() - lastWord <= SILENCE) {
      pause = 0;
    } else {
      const problem = await ask();
      pause = problem ? Math.min(2 * pause || 2, LONGEST_PAUSE) : 0;
      // The stream may have come back meanwhile.
      if (problem && performance.now() - lastWord > SILENCE) complain(problem, pause);
    }
    await wait(Math.max(POLL, pause * 1000));
  }
}

// Once; the sentence that says what is wrong, if anything is.
async function ask() {
  try {
    const answer = await fetch(beside("figures"), { signal: AbortSignal.timeout(SILENCE) });
    const problem = refusal(answer, "application/json");
    if (!problem) begin(await answer.json());
    return problem;
  } catch {
    return "The service can't be reached.";
  }
}

function complain(sentence, seconds) {
  const old = shownAt ? ` What is shown is of ${shownAt.toLocaleTimeString("en-GB")}.` : "";
  say("trouble", `${sentence} Next try in ${seconds} s.${old}`);
}

function say(kind, sentence) {
  if (kind === "live") shownAt = new Date();
  state.className = kind;
  // Set anew, it would be read out anew.
  if (state.textContent !== sentence) state.textContent = sentence;
}

// --- What is shown -----------------------------------------------------------------------------------------------

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

// A text that says nothing about the order of those around it.
const isolated = (text, kind = "") => make("bdi", { class: kind, title: text }, text);

const KINDS = {
  cache: ["Caches", ["expired", "evicted"], "Expired and evicted"],
  limiter: ["Limiters", ["allowed", "denied"], "Allowed and denied"],
  redis_cache: ["Caches on Redis, as this process sees them", ["expired"], "Expired"],
  redis_limiter: ["Limiters on Redis, as this process sees them", ["allowed", "denied"], "Allowed and denied"],
};

// Each figure: what it is called, its value, and a word on it.
const FIGURES = {
  cache: ({ counts, levels, rates, recent }) => [
    ["Entries", count(levels.entries), levels.weight !== levels.entries ? `weighing ${count(levels.weight)}` : `${count(rates.sets)} set a second`],
    ["Hit ratio", share100(recent.hit_ratio), is(recent.hit_ratio) ? `of the last minute, ${rate(rates.reads)} reads a second` : "no reads in the last minute"],
    ["Expired a second", rate(rates.expired), `${count(counts.expired)} in all`],
    ["Evicted a second", rate(rates.evicted), `${count(counts.evicted)} in all`],
    ["Event lag, p50", time(recent.lag_p50_ms), is(recent.lag_p50_ms) ? `p99 ${time(recent.lag_p99_ms)}, last minute` : levels.subscribers ? "no event in the last minute" : "nobody listens"],
    ["Sweeps a second", rate(rates.sweeps), is(recent.sweep_p99_ms) ? `p99 ${time(recent.sweep_p99_ms)}` : "none in the last minute"],
  ],
  limiter: ({ counts, levels, rates, recent }) => [
    ["Allowed a second", rate(rates.allowed), `${count(counts.allowed)} in all`],
    ["Denied a second", rate(rates.denied), `${count(counts.denied)} in all`],
    ["Denied", share100(recent.denied_ratio), is(recent.denied_ratio) ? "of the last minute" : "no calls in the last minute"],
    ["Keys", count(levels.keys), "in memory"],
  ],
  redis_cache: ({ counts, rates, recent }) => [
    ["Hit ratio", share100(recent.hit_ratio), is(recent.hit_ratio) ? `of the last minute, ${rate(rates.reads)} reads a second` : "no reads in the last minute"],
    ["Hits", count(counts.hits), `${count(counts.misses)} misses`],
    ["Expired a second", rate(rates.expired), is(counts.expired) ? `${count(counts.expired)} in all` : "not heard of here"],
  ],
  redis_limiter: ({ counts, rates, recent }) => [
    ["Allowed a second", rate(rates.allowed), `${count(counts.allowed)} in all`],
    ["Denied a second", rate(rates.denied), `${count(counts.denied)} in all`],
    ["Denied", share100(recent.denied_ratio), is(recent.denied_ratio) ? "of the last minute" : "no calls in the last minute"],
  ],
};

// What is of less use, in a table that opens.
const MORE = {
  cache: ({ counts, levels, rates }) => [
    ["Hits", count(counts.hits)], ["Misses", count(counts.misses)], ["Set", count(counts.sets)],
    ["Removed", count(counts.removed)], ["Replaced", count(counts.replaced)],
    ["Something dead is in memory for at most", time(levels.staleness_ms)],
    ["Looked at by sweeps, a second", count(rates.looked_at)], ["Subscribers", count(levels.subscribers)],
    ["Events that slow ones missed", count(counts.missed)], ["Events beyond a lossless one's capacity", count(levels.overflow)],
  ],
  limiter: ({ counts }) => [
    ["Waited, and passed", count(counts.waited)], ["Denied, and let pass by a shadow", count(counts.shadowed)],
    ["Checks of keys beyond the bound", count(counts.overflowed)],
  ],
};

const cards = new Map(), sections = new Map();
let isDue = false;

// At most once a frame, and in a tab that nobody sees not at all.
function draw() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
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

const nothing = make("p", { class: "soft" }, "No cache and no limiter lives in this process.");
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
    element.append(make("details", {}, make("summary", {}, "More figures"), make("table", {}, more.element)));
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

// Rows of a label and texts, made when they are first shown. Only texts that are others are set.
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
    make("svg", { viewBox: "0 0 24 8", "aria-hidden": "true" }, make("path", { class: number ? "second" : "first", d: "M0,4H24" })), `${line} a second`)));
  const caption = make("figcaption");
  const element = make("figure", { class: "chart" }, legend,
    make("div", { class: "y axis", "aria-hidden": "true" }, top, half, make("span", {}, "0 /s")), plot,
    make("div", { class: "x axis", "aria-hidden": "true" }, make("span", {}, "5 min ago"), make("span", {}, "now")), caption);
  return {
    element,
    show(history) {
      const all = lines.map(line => (history[line] ?? []).filter(is));
      const peak = Math.max(0, ...all.flat());
      const most = above(peak);
      set(top, `${rate(most)} /s`);
      set(half, `${rate(most / 2)} /s`);
      all.forEach((points, line) => {
        const first = POINTS - points.length;
        const d = points.map((point, at) => `${first + at},${(100 - 100 * point / most).toFixed(2)}`).join("L");
        paths[line].setAttribute("d", d ? `M${d}` : "");
        if (!line) area.setAttribute("d", d ? `M${first},100L${d}L299,100Z` : "");
      });
      // The same for some time, as it is read by those who don't see the lines.
      const words = lines.map((line, at) => `${line} ${rate(all[at].at(-1))}, at most ${rate(Math.max(0, ...all[at]))}`);
      set(caption, `${title} a second, over the last five minutes. Now: ${words.join("; ")}.`);
    },
  };
}

// The next number of one digit that is 1, 2 or 5, and at least 1.
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
        const text = !denied ? (at ? "\u00a0" : "Nobody.") : denied.plain ? denied.key : `# ${denied.key}`;
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
  const form = make("form", {}, make("label", {}, "How long does this key live?", input),
    make("button", { class: "quiet" }, "Search"), answer);
  form.addEventListener("submit", async event => {
    event.preventDefault();
    const key = input.value;
    const show = (...words) => answer.replaceChildren(...words);
    try {
      const response = await fetch(beside("ttl"), {
        method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ name, key }),
      });
      const isOurs = (response.headers.get("content-type") ?? "").startsWith("application/json");
      const told = isOurs ? await response.json() : {};
      if (!response.ok) show(told.error ?? refusal(response, "application/json"));
      else if (told.ttl === "missing") show(isolated(key), " is not there.");
      else if (told.ttl === "persistent") show(isolated(key), " lives until it is removed.");
      else show(isolated(key), ` lives for another ${time(told.ms)}.`);
    } catch {
      show("The service can't be reached.");
    }
  });
  return form;
}

if (shared) {
  shared.ask();
  // Whoever listens answers at once, or begins to; longer than that nobody should wait.
  lastWord = performance.now() - SILENCE + 3_000;
}
poll();
