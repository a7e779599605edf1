/**
 * Steps of the displayed branch. They are fetched in chunks when they come near the visible part of the page.
 *
 * `current` is the step at the scroll position, and `target` the step to which the page last scrolled, while it
 * is visible.
 */
export class Steps {
  constructor(run) {
    this.run = run;
    this.box = document.getElementById("steps");
    this.branch = run.dataset.line;
    this.total = Number(run.dataset.total);
    this.chunkSize = Number(run.dataset.chunk);
    this.current = null;
    this.target = null;
    this.isScrolling = false;
    this.scrollCount = 0;
    this.visibleSteps = new Set();
  }

  get isOpen() { return this.run.dataset.show === "conversation" && this.box !== null; }

  start() {
    this.visibility = new IntersectionObserver((entries) => this.updateVisible(entries), { rootMargin: "-110px 0px -55% 0px" });
    if (!this.isOpen) return;
    this.nearness = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        entry.target.isNear = entry.isIntersecting;
        // The delay skips chunks that fast scrolling passes.
        if (entry.isIntersecting) setTimeout(() => entry.target.isNear && this.load(entry.target), 60);
      }
    }, { rootMargin: "1500px 0px" });
    this.build();
    addEventListener("hashchange", () => this.goToHash());
    if (location.hash) this.goToHash();
  }

  // The rendered steps become the first filled chunk; placeholders reserve the estimated height of the others.
  build() {
    const [begin, end] = [Number(this.run.dataset.begin), Number(this.run.dataset.end)];
    const turns = [...this.box.children];
    const height = Math.max(90, this.box.getBoundingClientRect().height / Math.max(1, end - begin));
    const chunks = [];
    for (let from = 0; from < this.total; from += this.chunkSize) {
      const to = Math.min(from + this.chunkSize, this.total);
      const chunk = this.createPlaceholder(from, to, height);
      if (from === begin) this.fill(chunk, turns);
      chunks.push(chunk);
    }
    this.height = height;
    this.box.replaceChildren(...chunks);
    for (const link of document.querySelectorAll(".conversation > .paging")) link.hidden = true;
    if (begin > 0 && !location.hash) this.goTo(Number(new URL(location.href).searchParams.get("step") ?? begin));
  }

  createPlaceholder(from, to, height) {
    const chunk = document.createElement("div");
    chunk.className = "chunk hold";
    chunk.dataset.from = from;
    chunk.dataset.to = to;
    chunk.style.height = `${Math.round((to - from) * height)}px`;
    chunk.setAttribute("role", "group");
    chunk.setAttribute("aria-label", `Steps ${from} to ${to - 1}, not loaded yet`);
    this.nearness.observe(chunk);
    return chunk;
  }

  fill(chunk, nodes) {
    chunk.replaceChildren(...nodes);
    chunk.className = "chunk";
    chunk.style.height = "";
    chunk.removeAttribute("role");
    chunk.removeAttribute("aria-label");
    this.nearness.unobserve(chunk);
    for (const turn of chunk.querySelectorAll(".turn")) this.visibility.observe(turn);
  }

  async load(chunk) {
    if (!chunk.classList.contains("hold")) return;
    chunk.loading ??= this.fetch(chunk.dataset.from, chunk.dataset.to)
      .then((nodes) => this.fill(chunk, nodes))
      .catch(() => { chunk.loading = null; chunk.textContent = "These steps could not be loaded."; });
    await chunk.loading;
  }

  async fetch(from, to) {
    const query = new URLSearchParams({ from, to, line: this.branch });
    const response = await fetch(`${this.run.dataset.base}/steps?${query}`);
    if (!response.ok) throw new Error(response.status);
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    return [...page.body.children];
  }

  chunkOf(step) { return this.box.children[Math.floor(step / this.chunkSize)]; }

  /** Return whether a link leads to a step of the displayed branch. */
  hasTarget(link) {
    const url = new URL(link.href);
    const branch = url.hash && !url.search ? this.branch : url.searchParams.get("line") ?? "";
    return this.isOpen && url.pathname === location.pathname && branch === this.branch;
  }

  async goTo(step, hash = `#step-${step}`) {
    const scroll = ++this.scrollCount;  // a later call ends this one
    const chunk = this.chunkOf(Math.max(0, Math.min(step, this.total - 1)));
    if (!chunk) return;
    this.target = this.current = step;
    this.isScrolling = true;
    await this.load(chunk);
    if (scroll !== this.scrollCount) return;
    const element = document.getElementById(hash.slice(1)) ?? document.getElementById(`step-${step}`);
    if (!element) { this.isScrolling = false; return; }
    for (let fold = element.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    history.replaceState(null, "", hash);
    const target = element.closest("mark") ?? element;
    const block = target === element && element.matches(".turn") ? "start" : "center";
    const scrollToTarget = () => target.scrollIntoView({ block, behavior: "instant" });
    scrollToTarget();
    element.closest(".turn")?.focus({ preventScroll: true });
    this.markCurrent(step, true);
    // Placeholders near the target are replaced by steps of another height, so the position needs corrections.
    for (const delay of [60, 250, 600]) {
      const top = scrollY;
      await new Promise((done) => setTimeout(done, delay));
      if (scroll !== this.scrollCount) return;
      if (delay > 60 && Math.abs(scrollY - top) > 600) break;  // the user has scrolled
      scrollToTarget();
    }
    this.isScrolling = false;
    if (target !== element) flash(target);
  }

  goToHash() {
    const match = /^#step-(\d+)$/.exec(location.hash);
    if (match) { this.goTo(Number(match[1])); return; }
    const step = new URL(location.href).searchParams.get("step");
    if (/^#q\d+$/.test(location.hash) && step !== null) this.goTo(Number(step), location.hash);
  }

  updateVisible(entries) {
    for (const entry of entries) {
      const step = Number(entry.target.dataset.step);
      entry.isIntersecting ? this.visibleSteps.add(step) : this.visibleSteps.delete(step);
    }
    if (this.isScrolling) return;
    // The target of the last scroll stays the current step while any part of it is visible.
    const box = this.target === null ? null : document.getElementById(`step-${this.target}`)?.getBoundingClientRect();
    if (!box || box.bottom < 100 || box.top > innerHeight) this.target = null;
    if (this.visibleSteps.size) this.markCurrent(this.target ?? Math.min(...this.visibleSteps));
  }

  /** Mark the current step in the conversation and in the timeline. */
  markCurrent(step, force = false) {
    if (step === this.current && !force) return;
    this.current = step;
    this.box?.querySelector(".turn.now")?.classList.remove("now");
    document.getElementById(`step-${step}`)?.classList.add("now");
    const timeline = document.querySelector("#strip svg");
    if (timeline !== this.timeline) [this.timeline, this.bars] = [timeline, [...(timeline?.querySelectorAll(".bar:not(.lane)") ?? [])]];
    const bar = this.bars.findLast((one) => Number(one.dataset.from ?? one.dataset.step) <= step)?.querySelector(".k");
    const marker = document.getElementById("at");
    if (!bar || !marker) return;
    marker.style.left = bar.getAttribute("x");
    marker.hidden = false;
  }

  /** Append new steps up to `total`, and load the steps again that differ from step `from` on. */
  async extend(total, from) {
    const oldTotal = this.total;
    this.total = total;
    if (!this.isOpen) return;
    for (const chunk of [...this.box.children]) if (Number(chunk.dataset.from) >= total) chunk.remove();
    for (let begin = Math.floor(Math.min(from, oldTotal) / this.chunkSize) * this.chunkSize; begin < total; begin += this.chunkSize) {
      const end = Math.min(begin + this.chunkSize, total);
      const chunk = this.chunkOf(begin) ?? this.box.appendChild(this.createPlaceholder(begin, end, this.height));
      const isFilled = !chunk.classList.contains("hold");
      chunk.dataset.to = end;
      if (isFilled) this.fill(chunk, await this.fetch(begin, end));
    }
  }
}

function flash(element) {
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  element.animate([{ outline: "3px solid transparent" }, { outline: "3px solid currentColor" }, { outline: "3px solid transparent" }], 900);
}
