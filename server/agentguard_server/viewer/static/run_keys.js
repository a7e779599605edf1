/** Bind the keys of the page of a run; the dialog "Keys" of the page lists them. */
export function bindKeys(run, steps) {
  const help = document.getElementById("help");
  const button = document.getElementById("keys");
  button.hidden = false;
  button.addEventListener("click", () => help.showModal());
  const findings = run.dataset.findings.split(" ").filter(Boolean).map(Number);
  const open = (query) => { location.href = `${run.dataset.base}${query}`; };
  const goTo = (step) => (steps.isOpen ? steps.goTo(step) : open(`?step=${step}#step-${step}`));
  const current = () => steps.current ?? -1;

  const actions = {
    j: () => goTo(Math.min(current() + 1, steps.total - 1)),
    k: () => goTo(Math.max(current() - 1, 0)),
    n: () => { const next = findings.find((step) => step > current()); if (next !== undefined) goTo(next); },
    p: () => { const previous = findings.findLast((step) => step < current()); if (previous !== undefined) goTo(previous); },
    r: () => (run.dataset.root ? goTo(Number(run.dataset.root)) : document.querySelector(".sentence .step")?.click()),
    y: () => document.querySelector(`#step-${current()} button.label`)?.click(),
    x: () => document.querySelector('#judge-form button[value="no"], #judge-form button[value="failed"]')?.click(),
    b: () => open(run.dataset.show === "branches" ? "" : "?show=branches"),
    "/": () => document.getElementById("q").focus(),
    "?": () => help.showModal(),
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    if (event.target.closest("input, textarea, select, [contenteditable]")) return;
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}
