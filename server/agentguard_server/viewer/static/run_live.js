/**
 * Follow a run in progress: replace header, timeline and counts with those of the server, and append new steps
 * to the conversation. The scroll position does not change.
 */
export function followRun(run, steps, announce) {
  let timer = 0, isUpdating = false;
  const events = new EventSource(run.dataset.events);
  events.addEventListener("runs", (event) => {
    const changes = JSON.parse(event.data);
    if (!changes.more && !changes.ids.includes(run.dataset.run)) return;
    clearTimeout(timer);
    timer = setTimeout(update, 400);
  });
  addEventListener("pagehide", () => events.close());

  async function update() {
    if (isUpdating) { timer = setTimeout(update, 400); return; }
    isUpdating = true;
    try { await loadPage(); } catch { /* the next event starts another update */ } finally { isUpdating = false; }
  }

  async function loadPage() {
    const response = await fetch(location.href.split("#")[0]);
    if (!response.ok) return;
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const newRun = page.querySelector(".run");
    if (!newRun) return;
    const [oldTotal, total] = [steps.total, Number(newRun.dataset.total)];
    const isRolledBack = newRun.dataset.forks !== run.dataset.forks;
    for (const name of ["findings", "root", "forks", "total"]) run.dataset[name] = newRun.dataset[name];
    for (const selector of ["#head", "#strip", ".legend", ".tabs"]) replace(selector, page);
    if (total !== oldTotal || isRolledBack) {
      const fork = Number(newRun.dataset.forks.split(" ").at(-1) || 0);
      await steps.extend(total, isRolledBack ? Math.min(fork, oldTotal) : oldTotal);
      const added = total - oldTotal;
      if (isRolledBack) announce("The run was rolled back.", { text: "Show", run: () => steps.goTo(fork) });
      else if (added > 0) announce(`${added} new ${added === 1 ? "step" : "steps"}.`, { text: "Show", run: () => steps.goTo(oldTotal) });
    }
    const current = steps.current;
    steps.current = null;
    if (current !== null) steps.markCurrent(current);
  }

  function replace(selector, page) {
    const [oldElement, newElement] = [document.querySelector(selector), page.querySelector(selector)];
    // An element with the focus stays until the next update.
    if (oldElement && newElement && !oldElement.contains(document.activeElement)) oldElement.replaceWith(newElement);
  }
}
