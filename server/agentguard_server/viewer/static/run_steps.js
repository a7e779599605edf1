// The steps of a line: chunks that are fetched as they come near, and where the reader is among them.
export class Steps {
  constructor(run) {
    this.run = run;
    this.box = document.getElementById("steps");
    this.line = run.dataset.line;
    this.total = Number(run.dataset.total);
    this.chunk = Number(run.dataset.chunk);
    this.now = null;
    this.cursor = null;
    this.going = false;
    this.trip = 0;
    this.inView = new Set();
  }

  get open() { return this.run.dataset.show === "conversation" && this.box !== null; }

  start() {
    this.seen = new IntersectionObserver((found) => this.moved(found), { rootMargin: "-110px 0px -55% 0px" });
    if (!this.open) return;
    this.near = new IntersectionObserver((found) => {
      for (const one of found) {
        one.target.near = one.isIntersecting;
        // A reader who rushes by needs nothing of what lies on the way.
        if (one.isIntersecting) setTimeout(() => one.target.near && this.load(one.target), 60);
      }
    }, { rootMargin: "1500px 0px" });
    this.build();
    addEventListener("hashchange", () => this.toHash());
    if (location.hash) this.toHash();
  }

  // What the server rendered becomes the first filled chunk; all others are held open at about their height.
  build() {
    const [begin, end] = [Number(this.run.dataset.begin), Number(this.run.dataset.end)];
    const turns = [...this.box.children];
    const height = Math.max(90, this.box.getBoundingClientRect().height / Math.max(1, end - begin));
    const chunks = [];
    for (let from = 0; from < this.total; from += this.chunk) {
      const to = Math.min(from + this.chunk, this.total);
      const held = this.hold(from, to, height);
      if (from === begin) this.fill(held, turns);
      chunks.push(held);
    }
    this.height = height;
    this.box.replaceChildren(...chunks);
    for (const one of document.querySelectorAll(".conversation > .paging")) one.hidden = true;
    if (begin > 0 && !location.hash) this.go(Number(new URL(location.href).searchParams.get("step") ?? begin));
  }

  hold(from, to, height) {
    const held = document.createElement("div");
    held.className = "chunk hold";
    held.dataset.from = from;
    held.dataset.to = to;
    held.style.height = `${Math.round((to - from) * height)}px`;
    held.setAttribute("role", "group");
    held.setAttribute("aria-label", `Steps ${from} to ${to - 1}, not loaded yet`);
    this.near.observe(held);
    return held;
  }

  fill(held, nodes) {
    held.replaceChildren(...nodes);
    held.className = "chunk";
    held.style.height = "";
    held.removeAttribute("role");
    held.removeAttribute("aria-label");
    this.near.unobserve(held);
    for (const turn of held.querySelectorAll(".turn")) this.seen.observe(turn);
  }

  async load(held) {
    if (!held.classList.contains("hold")) return;
    held.coming ??= this.fetch(held.dataset.from, held.dataset.to)
      .then((nodes) => this.fill(held, nodes))
      .catch(() => { held.coming = null; held.textContent = "These steps could not be loaded."; });
    await held.coming;
  }

  async fetch(from, to) {
    const asked = new URLSearchParams({ from, to, line: this.line });
    const answer = await fetch(`${this.run.dataset.base}/steps?${asked}`);
    if (!answer.ok) throw new Error(answer.status);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    return [...page.body.children];
  }

  chunkOf(step) { return this.box.children[Math.floor(step / this.chunk)]; }

  // Whether a link leads to a step of the line that is open.
  holds(link) {
    const url = new URL(link.href);
    const line = url.searchParams.get("line") ?? "";
    const here = url.hash && !url.search ? this.line : line;
    return this.open && url.pathname === location.pathname && here === this.line;
  }

  async go(step, hash = `#step-${step}`) {
    const trip = ++this.trip;  // whoever goes somewhere else meanwhile ends this trip
    const held = this.chunkOf(Math.max(0, Math.min(step, this.total - 1)));
    if (!held) return;
    this.cursor = this.now = step;
    this.going = true;
    await this.load(held);
    if (trip !== this.trip) return;
    const place = document.getElementById(hash.slice(1)) ?? document.getElementById(`step-${step}`);
    if (!place) { this.going = false; return; }
    for (let fold = place.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    history.replaceState(null, "", hash);
    const target = place.closest("mark") ?? place;
    // Heights that were only reserved become real as they come near: look again once they have.
    const look = () => target.scrollIntoView({ block: target === place && place.matches(".turn") ? "start" : "center", behavior: "instant" });
    look();
    place.closest(".turn")?.focus({ preventScroll: true });
    this.mark(step, true);
    for (const wait of [60, 250, 600]) {
      const top = scrollY;
      await new Promise((done) => setTimeout(done, wait));
      if (trip !== this.trip) return;
      if (wait > 60 && Math.abs(scrollY - top) > 600) break;  // the reader has moved on
      look();
    }
    this.going = false;
    if (target !== place) flash(target);
  }

  toHash() {
    const found = /^#step-(\d+)$/.exec(location.hash);
    if (found) { this.go(Number(found[1])); return; }
    const asked = new URL(location.href).searchParams.get("step");
    if (/^#q\d+$/.test(location.hash) && asked !== null) this.go(Number(asked), location.hash);
  }

  moved(found) {
    for (const one of found) {
      const step = Number(one.target.dataset.step);
      one.isIntersecting ? this.inView.add(step) : this.inView.delete(step);
    }
    if (this.going) return;
    // A step that was gone to stays the current one as long as it is in sight, wherever on the screen.
    const place = this.cursor === null ? null : document.getElementById(`step-${this.cursor}`)?.getBoundingClientRect();
    if (!place || place.bottom < 100 || place.top > innerHeight) this.cursor = null;
    if (this.inView.size) this.mark(this.cursor ?? Math.min(...this.inView));
  }

  // Where the reader is, on the strip, too.
  mark(step, anew = false) {
    if (step === this.now && !anew) return;
    this.now = step;
    this.box?.querySelector(".turn.now")?.classList.remove("now");
    document.getElementById(`step-${step}`)?.classList.add("now");
    const strip = document.querySelector("#strip svg");
    if (strip !== this.strip) [this.strip, this.bars] = [strip, [...(strip?.querySelectorAll(".bar:not(.lane)") ?? [])]];
    const bar = this.bars.findLast((one) => Number(one.dataset.from ?? one.dataset.step) <= step)?.querySelector(".k");
    const at = document.getElementById("at");
    if (!bar || !at) return;
    at.style.left = bar.getAttribute("x");
    at.hidden = false;
  }

  // The run went on: what is new is appended, what was rolled back is read again.
  async grown(total, from) {
    const before = this.total;
    this.total = total;
    if (!this.open) return;
    const stale = [...this.box.children].filter((one) => Number(one.dataset.to) > from || Number(one.dataset.from) >= total);
    for (const one of stale) if (Number(one.dataset.from) >= total) one.remove();
    for (let at = Math.floor(Math.min(from, before) / this.chunk) * this.chunk; at < total; at += this.chunk) {
      const to = Math.min(at + this.chunk, total);
      const held = this.chunkOf(at) ?? this.box.appendChild(this.hold(at, to, this.height));
      const filled = !held.classList.contains("hold");
      held.dataset.to = to;
      if (filled) this.fill(held, await this.fetch(at, to));
    }
  }
}

function flash(element) {
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  element.animate([{ outline: "3px solid transparent" }, { outline: "3px solid currentColor" }, { outline: "3px solid transparent" }], 900);
}
