// The page of a run with comfort: it reads without any of this.
import { Steps } from "./run_steps.js";
import { keys } from "./run_keys.js";
import { follow } from "./run_live.js";

const run = document.querySelector(".run");
const steps = new Steps(run);

export function say(text, action) {
  const told = document.getElementById("told");
  told.replaceChildren(text);
  if (action) {
    const button = document.createElement("button");
    button.textContent = action.text;
    button.addEventListener("click", () => { told.replaceChildren(); action.does(); });
    told.append(" ", button);
  } else {
    setTimeout(() => told.replaceChildren(), 2500);
  }
}

// A click on "step 12" leads there and copies the permalink.
document.addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  if (link.matches("a.no")) {
    const url = new URL(location.href);
    url.search = run.dataset.line ? `?line=${encodeURIComponent(run.dataset.line)}` : "";
    url.searchParams.set("step", link.closest(".turn").dataset.step);
    url.hash = link.hash;
    navigator.clipboard?.writeText(url.href).then(() => say("Link copied"), () => {});
    return;
  }
  if (link.dataset.step !== undefined && steps.holds(link)) {
    event.preventDefault();
    steps.go(Number(link.dataset.step), link.hash);
  }
});

steps.start();
keys(run, steps);
follow(run, steps, say);
