// Comfort for the list of runs. Without it the page reads, filters, sorts and turns pages all the same.

const table = document.getElementById("runs");
const fresh = document.getElementById("fresh");
const since = Number(table?.dataset.since ?? 0);

// -- times as this browser's clock shows them

const nearby = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
const distant = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric" });

function localise(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.valueOf())) continue;
    time.textContent = (Date.now() - at < 300 * 86400e3 ? nearby : distant).format(at);
  }
}
localise(document);

// -- a form that leaves what is empty out of the address

const form = document.getElementById("filters");
const usual = { sort: "time", dir: "desc", limit: "50" };
form?.addEventListener("formdata", (event) => {
  for (const [name, value] of [...event.formData]) {
    if (!value || usual[name] === value) event.formData.delete(name);
  }
});
for (const box of document.querySelectorAll('.filters > .ticks input[type="checkbox"]')) {
  box.addEventListener("change", () => form.requestSubmit());
}

// -- keys

const links = () => [...document.querySelectorAll(".runs a.open")];

function step(by) {
  const all = links();
  if (!all.length) return;
  const row = document.activeElement?.closest?.("tr[data-id]");
  const at = row ? all.findIndex((one) => row.contains(one)) : by > 0 ? -1 : all.length;
  const to = all[Math.min(all.length - 1, Math.max(0, at + by))];
  to.focus({ focusVisible: true });
  to.scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const typing = event.target.closest?.("input, select, textarea");
  if (typing) {
    if (event.key === "Escape") typing.blur();
    return;
  }
  if (event.key === "j") step(1);
  else if (event.key === "k") step(-1);
  else if (event.key === "/") document.getElementById("q")?.focus();
  else return;
  event.preventDefault();
});

// -- what changes: rows that are shown change where they are, new ones wait until they are asked for

const unseen = new Set();
let many = false;

function tell() {
  if (!unseen.size || !fresh) return;
  const number = many || unseen.size >= 50 ? "50 or more" : String(unseen.size);
  fresh.querySelector("a").textContent = `${number} new ${unseen.size === 1 ? "run" : "runs"} – show`;
  fresh.hidden = false;
}

async function page() {
  const answer = await fetch(location.href, { headers: { accept: "text/html" } });
  return answer.ok ? new DOMParser().parseFromString(await answer.text(), "text/html") : null;
}

function showProgress(found) {
  const note = document.getElementById("diagnosing");
  const other = found?.getElementById("diagnosing");
  if (other) note?.replaceWith(other);
  else if (found) note?.remove();
}

// The table hides the columns without a value; a changed row may have the first one.
function showColumns(found) {
  const other = found?.querySelector("table.runs");
  if (other) table.className = other.className;
}

let waiting = 0;
const changed = new Set();

function soon() {
  if (waiting) return;
  waiting = setTimeout(async () => {
    const ids = new Set(changed);
    changed.clear();
    const found = await page().catch(() => null);
    waiting = 0;
    showColumns(found);
    showProgress(found);
    for (const row of found?.querySelectorAll("tr[data-id]") ?? []) {
      const old = document.querySelector(`tr[data-id="${CSS.escape(row.dataset.id)}"]`);
      if (!old || !ids.has(row.dataset.id)) continue;
      const held = old.contains(document.activeElement);
      row.classList.add("changed");
      localise(row);
      row.querySelector(".c-select input").checked = old.querySelector(".c-select input").checked;
      old.replaceWith(row);
      if (held) row.querySelector("a.open").focus();
      setTimeout(() => row.classList.remove("changed"), 1500);
    }
    if (changed.size) soon();
  }, 1500);
}

function runs(data) {
  many ||= data.more;
  if (document.getElementById("diagnosing")) soon();
  data.ids.forEach((id, place) => {
    if (document.querySelector(`tr[data-id="${CSS.escape(id)}"]`)) {
      changed.add(id);
      soon();
    } else if (data.created[place] > since) {
      unseen.add(id);
    }
  });
  tell();
}

// -- files that are being read: the list fills by itself until it is a page long

const note = document.getElementById("loading");
let reading = note?.dataset.running === "yes";
let filling = 0;

function fill() {
  if (filling) return;
  filling = setTimeout(async () => {
    const found = await page().catch(() => null);
    filling = 0;
    if (!found) return;
    if (!links().length && found.querySelector("tr[data-id]")) {
      location.reload(); // there was nothing on this page to lose
      return;
    }
    const now = found.getElementById("loading");
    if (now) note.replaceChildren(...now.childNodes);
    const count = found.getElementById("count");
    if (count) document.getElementById("count").textContent = count.textContent;
    const body = document.querySelector(".runs tbody");
    if (body && !body.contains(document.activeElement)) {
      showColumns(found);
      localise(found);
      body.replaceChildren(...found.querySelectorAll(".runs tbody > tr"));
      for (const row of body.children) unseen.delete(row.dataset.id);
      fresh.hidden = true;
    }
  }, 1000);
}

if (table?.dataset.events) {
  const source = new EventSource(`${table.dataset.events}?since=${since}`);
  source.addEventListener("runs", (event) => {
    const short = links().length < Number(table.dataset.limit ?? 0);
    if (reading && short) fill();
    else runs(JSON.parse(event.data));
  });
  source.addEventListener("loading", (event) => {
    const data = JSON.parse(event.data);
    if (!reading || !data.total) return;
    reading = data.running;
    fill();
  });
  addEventListener("pagehide", () => source.close());
}
