// Parts of the page that only this service has, in addition to the dashboard: a form for sessions, and the list of
// expired ones. Ids and bodies are untrusted: they are inserted by textContent, never as HTML.

import { make, refusal, share, showFailure } from "./fleeting/script.js";

const ROWS = 5, SHOWN = 200;
const relative = path => new URL(path, import.meta.url);
const form = document.getElementById("session"), answer = form.querySelector("output");
const isolated = text => make("bdi", { title: text }, text);
const show = (...words) => answer.replaceChildren(...words);
const milliseconds = ms => ms < 10 ? `${ms.toFixed(1)} ms` : `${Math.round(ms)} ms`;

form.addEventListener("submit", async event => {
  event.preventDefault();
  const verb = event.submitter?.value ?? "put";
  const { id: { value: id }, ttl: { value: ttl }, body: { value: body } } = form.elements;
  if (id === "." || id === "..") return show("Browsers cannot request this id.");
  const address = relative(`sessions/${encodeURIComponent(id)}`);
  try {
    if (verb === "put") {
      if (ttl) address.searchParams.set("ttl", ttl);
      const response = await fetch(address, { method: "PUT", body });
      if (!response.ok) return showError(response);
      const done = response.status === 201 ? "Created" : "Replaced";
      show(`${done}: `, isolated(id), ttl ? `, TTL ${ttl} s.` : ", with the longest TTL.");
    } else if (verb === "read") {
      const response = await fetch(address);
      if (!response.ok) return showError(response);
      const text = await response.text();
      const body = text.length > SHOWN ? `${text.slice(0, SHOWN)}…` : text;
      show(isolated(id), body ? ": " : " has an empty body.", body && isolated(body));
    } else {
      const response = await fetch(address, { method: "DELETE" });
      if (!response.ok) return showError(response);
      show("Deleted: ", isolated(id), ".");
    }
  } catch {
    showFailure(answer);
  }
});

// Shows the error message of the service, or that of a proxy which responded in its place.
async function showError(response) {
  const isOurs = (response.headers.get("content-type") ?? "").startsWith("application/json");
  const parsed = isOurs ? await response.json() : {};
  if (typeof parsed.error === "string") show(parsed.error);
  else showFailure(answer, refusal(response, "application/json"));
}

const rows = Array.from({ length: ROWS }, (_, row) =>
  make("tr", {}, make("td", {}, row ? "\u00a0" : "None."), make("td", {}, "\u00a0")));
document.getElementById("events").append(...rows);

const caption = document.getElementById("missed");
let latest = [], missed = 0, problem = null, isDue = false;

function showState() {
  if (!latest.length) rows[0].cells[0].textContent = problem ? "–" : "None.";
  const sentence = problem ?? (missed
    ? `Since this page was opened; ${missed} were too fast to be shown`
    : "Since this page was opened");
  if (caption.textContent !== sentence) caption.textContent = sentence;
}

share(relative("events").href, {
  onOpen() {
    problem = null;
    showState();
  },
  onEvent(name, data) {
    problem = null;
    if (name === "lagged") missed += data.missed;
    else latest = [data, ...latest].slice(0, ROWS);
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => {
      isDue = false;
      latest.forEach(({ key, lag_ms }, row) => {
        rows[row].cells[0].replaceChildren(isolated(key));
        rows[row].cells[1].textContent = lag_ms === null ? "–" : milliseconds(lag_ms);
      });
      showState();
    });
  },
  onProblem(sentence, seconds) {
    const next = new Date(Date.now() + seconds * 1000).toLocaleTimeString("en-GB");
    problem = `${sentence} Next try at ${next}.`;
    showState();
  },
});
