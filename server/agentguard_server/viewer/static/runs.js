// Script of the list of runs; reading, filters, sorting and paging work without it.

const table = document.getElementById("runs");
const newRunsNote = document.getElementById("fresh");
const since = Number(table?.dataset.since ?? 0);

// -- times in the time zone of the browser

const recentFormat = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
const oldFormat = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric" });

function localiseTimes(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const date = new Date(element.dateTime);
    if (Number.isNaN(date.valueOf())) continue;
    element.textContent = (Date.now() - date < 300 * 86400e3 ? recentFormat : oldFormat).format(date);
  }
}
localiseTimes(document);

// -- form of the filters: parameters with default values are left out of the address

const form = document.getElementById("filters");
const defaults = { sort: "time", dir: "desc", limit: "50" };
form?.addEventListener("formdata", (event) => {
  for (const [name, value] of [...event.formData]) {
    if (!value || defaults[name] === value) event.formData.delete(name);
  }
});
for (const box of document.querySelectorAll('.filters > .ticks input[type="checkbox"]')) {
  box.addEventListener("change", () => form.requestSubmit());
}

// -- keys

const listLinks = () => [...document.querySelectorAll(".runs a.open")];

function moveFocus(offset) {
  const links = listLinks();
  if (!links.length) return;
  const row = document.activeElement?.closest?.("tr[data-id]");
  const index = row ? links.findIndex((link) => row.contains(link)) : offset > 0 ? -1 : links.length;
  const target = links[Math.min(links.length - 1, Math.max(0, index + offset))];
  target.focus({ focusVisible: true });
  target.scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const field = event.target.closest?.("input, select, textarea");
  if (field) {
    if (event.key === "Escape") field.blur();
    return;
  }
  if (event.key === "j") moveFocus(1);
  else if (event.key === "k") moveFocus(-1);
  else if (event.key === "/") document.getElementById("q")?.focus();
  else return;
  event.preventDefault();
});

// -- changes in the store: visible rows are replaced in place, and new runs are counted in a note

const newRuns = new Set();
let hasMoreRuns = false;

function showNewRunCount() {
  if (!newRuns.size || !newRunsNote) return;
  const count = hasMoreRuns || newRuns.size >= 50 ? "50 or more" : String(newRuns.size);
  newRunsNote.querySelector("a").textContent = `${count} new ${newRuns.size === 1 ? "run" : "runs"} – show`;
  newRunsNote.hidden = false;
}

async function fetchPage() {
  const response = await fetch(location.href, { headers: { accept: "text/html" } });
  return response.ok ? new DOMParser().parseFromString(await response.text(), "text/html") : null;
}

function updateProgress(page) {
  const note = document.getElementById("diagnosing");
  const newNote = page?.getElementById("diagnosing");
  if (newNote) note?.replaceWith(newNote);
  else if (page) note?.remove();
}

// The table hides columns without values, and a changed row can have the first value of a column.
function updateColumns(page) {
  const newTable = page?.querySelector("table.runs");
  if (newTable) table.className = newTable.className;
}

let rowTimer = 0;
const changedRuns = new Set();

function scheduleRowUpdate() {
  if (rowTimer) return;
  rowTimer = setTimeout(async () => {
    const ids = new Set(changedRuns);
    changedRuns.clear();
    const page = await fetchPage().catch(() => null);
    rowTimer = 0;
    updateColumns(page);
    updateProgress(page);
    for (const row of page?.querySelectorAll("tr[data-id]") ?? []) {
      const oldRow = document.querySelector(`tr[data-id="${CSS.escape(row.dataset.id)}"]`);
      if (!oldRow || !ids.has(row.dataset.id)) continue;
      const hadFocus = oldRow.contains(document.activeElement);
      row.classList.add("changed");
      localiseTimes(row);
      row.querySelector(".c-select input").checked = oldRow.querySelector(".c-select input").checked;
      oldRow.replaceWith(row);
      if (hadFocus) row.querySelector("a.open").focus();
      setTimeout(() => row.classList.remove("changed"), 1500);
    }
    if (changedRuns.size) scheduleRowUpdate();
  }, 1500);
}

function applyChanges(changes) {
  hasMoreRuns ||= changes.more;
  if (document.getElementById("diagnosing")) scheduleRowUpdate();
  changes.ids.forEach((id, index) => {
    if (document.querySelector(`tr[data-id="${CSS.escape(id)}"]`)) {
      changedRuns.add(id);
      scheduleRowUpdate();
    } else if (changes.created[index] > since) {
      newRuns.add(id);
    }
  });
  showNewRunCount();
}

// -- files in progress: the list shows new runs until the first page is full

const loadingNote = document.getElementById("loading");
let isLoading = loadingNote?.dataset.running === "yes";
let listTimer = 0;

function scheduleListUpdate() {
  if (listTimer) return;
  listTimer = setTimeout(async () => {
    const page = await fetchPage().catch(() => null);
    listTimer = 0;
    if (!page) return;
    if (!listLinks().length && page.querySelector("tr[data-id]")) {
      location.reload(); // the page has no table yet
      return;
    }
    const newNote = page.getElementById("loading");
    if (newNote) loadingNote.replaceChildren(...newNote.childNodes);
    const count = page.getElementById("count");
    if (count) document.getElementById("count").textContent = count.textContent;
    const body = document.querySelector(".runs tbody");
    if (body && !body.contains(document.activeElement)) {
      updateColumns(page);
      localiseTimes(page);
      body.replaceChildren(...page.querySelectorAll(".runs tbody > tr"));
      for (const row of body.children) newRuns.delete(row.dataset.id);
      newRunsNote.hidden = true;
    }
  }, 1000);
}

if (table?.dataset.events) {
  const events = new EventSource(`${table.dataset.events}?since=${since}`);
  events.addEventListener("runs", (event) => {
    const isPageFull = listLinks().length >= Number(table.dataset.limit ?? 0);
    if (isLoading && !isPageFull) scheduleListUpdate();
    else applyChanges(JSON.parse(event.data));
  });
  events.addEventListener("loading", (event) => {
    const progress = JSON.parse(event.data);
    if (!isLoading || !progress.total) return;
    isLoading = progress.running;
    scheduleListUpdate();
  });
  addEventListener("pagehide", () => events.close());
}
