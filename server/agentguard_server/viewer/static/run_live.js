// A run that goes on: its head, strip and counts are replaced by what the server renders now; new steps come
// to the end of the conversation. The reader's place stays.
export function follow(run, steps, say) {
  let due = 0, busy = false;
  const listen = new EventSource(run.dataset.events);
  listen.addEventListener("runs", (event) => {
    const told = JSON.parse(event.data);
    if (!told.more && !told.ids.includes(run.dataset.run)) return;
    clearTimeout(due);
    due = setTimeout(renew, 400);
  });
  addEventListener("pagehide", () => listen.close());

  async function renew() {
    if (busy) { due = setTimeout(renew, 400); return; }
    busy = true;
    try { await take(); } catch { /* the next event tries again */ } finally { busy = false; }
  }

  async function take() {
    const answer = await fetch(location.href.split("#")[0]);
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.querySelector(".run");
    if (!fresh) return;
    const [before, total] = [steps.total, Number(fresh.dataset.total)];
    const rolled = fresh.dataset.forks !== run.dataset.forks;
    for (const name of ["findings", "root", "forks", "total"]) run.dataset[name] = fresh.dataset[name];
    for (const place of ["#head", "#strip", ".legend", ".tabs"]) swap(place, page);
    if (total !== before || rolled) {
      const last = Number(fresh.dataset.forks.split(" ").at(-1) || 0);
      await steps.grown(total, rolled ? Math.min(last, before) : before);
      const more = total - before;
      if (rolled) say("The run was rolled back.", { text: "Show", does: () => steps.go(last) });
      else if (more > 0) say(`${more} new ${more === 1 ? "step" : "steps"}.`, { text: "Show", does: () => steps.go(before) });
    }
    const now = steps.now;
    steps.now = null;
    if (now !== null) steps.mark(now);
  }

  function swap(place, page) {
    const [here, there] = [document.querySelector(place), page.querySelector(place)];
    // What is being used is left alone until the next time.
    if (here && there && !here.contains(document.activeElement)) here.replaceWith(there);
  }
}
