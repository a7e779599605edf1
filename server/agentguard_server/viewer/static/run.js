// Script of the page of a run; the page works without it.
import { Steps } from "./run_steps.js";
import { bindKeys } from "./run_keys.js";
import { followRun } from "./run_live.js";

const run = document.querySelector(".run");
const steps = new Steps(run);

/** Show a message with an optional button `{ text, run }`; a message without a button disappears. */
export function announce(text, action) {
  const status = document.getElementById("status");
  status.replaceChildren(text);
  if (action) {
    const button = document.createElement("button");
    button.textContent = action.text;
    button.addEventListener("click", () => { status.replaceChildren(); action.run(); });
    status.append(" ", button);
  } else {
    setTimeout(() => status.replaceChildren(), 2500);
  }
}

// A click on the number of a step copies the permalink. A click on a link to a step scrolls to the step.
document.addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  if (link.matches("a.no")) {
    const url = new URL(location.href);
    url.search = run.dataset.line ? `?line=${encodeURIComponent(run.dataset.line)}` : "";
    url.searchParams.set("step", link.closest(".turn").dataset.step);
    url.hash = link.hash;
    navigator.clipboard?.writeText(url.href).then(() => announce("Link copied"), () => {});
    return;
  }
  if (link.dataset.step !== undefined && steps.hasTarget(link)) {
    event.preventDefault();
    steps.goTo(Number(link.dataset.step), link.hash);
  }
});

steps.start();
bindKeys(run, steps);
followRun(run, steps, announce);
