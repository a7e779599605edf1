// Keys: j k steps, n p findings, r root cause, y x labels, b branches, / search, ? help. The list of them is in the page.
export function keys(run, steps) {
  const help = document.getElementById("help");
  const button = document.getElementById("keys");
  button.hidden = false;
  button.addEventListener("click", () => help.showModal());
  const found = run.dataset.findings.split(" ").filter(Boolean).map(Number);
  const away = (query) => { location.href = `${run.dataset.base}${query}`; };
  const to = (step) => (steps.open ? steps.go(step) : away(`?step=${step}#step-${step}`));
  const at = () => steps.now ?? -1;

  const does = {
    j: () => to(Math.min(at() + 1, steps.total - 1)),
    k: () => to(Math.max(at() - 1, 0)),
    n: () => { const next = found.find((one) => one > at()); if (next !== undefined) to(next); },
    p: () => { const last = found.findLast((one) => one < at()); if (last !== undefined) to(last); },
    r: () => (run.dataset.root ? to(Number(run.dataset.root)) : document.querySelector(".sentence .step")?.click()),
    y: () => document.querySelector(`#step-${at()} button.label`)?.click(),
    x: () => document.querySelector('#judge-form button[value="no"], #judge-form button[value="failed"]')?.click(),
    b: () => away(run.dataset.show === "branches" ? "" : "?show=branches"),
    "/": () => document.getElementById("q").focus(),
    "?": () => help.showModal(),
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    if (event.target.closest("input, textarea, select, [contenteditable]")) return;
    const act = does[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}
