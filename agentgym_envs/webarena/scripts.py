"""JavaScript that runs in the pages: once before a page's own scripts, and when the environment asks for it."""

from __future__ import annotations

import json
from collections.abc import Mapping

# Before every page. It freezes the date, counts what the page still waits for (short timers and requests of
# scripts), and stops clicks on links that lead away from the sites; the proxy refuses those anyway, but then the
# page would be lost. `__agentgym` is not enumerable, so no page comes across it by accident.
_BEFORE = """
(() => {
  const { now, origins, sites } = %s;
  const state = { pending: 0, refused: [], later: window.setTimeout.bind(window) };
  Object.defineProperty(window, "__agentgym", { value: state });

  const RealDate = Date;
  if (now !== null) window.Date = class Date extends RealDate {
    constructor(...given) { given.length ? super(...given) : super(now); }
    static now() { return now; }
  };

  // A timer that a timer started is of interest too, one that starts itself again and again is not.
  const MAX_DELAY = 500, MAX_DEPTH = 3;
  const [start, stop] = [window.setTimeout, window.clearTimeout];
  const timers = new Set();
  let depth = 0;
  window.setTimeout = (action, delay, ...given) => {
    if (typeof action !== "function" || delay > MAX_DELAY || depth > MAX_DEPTH) return start(action, delay, ...given);
    const below = depth + 1;
    const id = start(() => {
      timers.delete(id);
      const before = depth;
      depth = below;
      try { action.apply(window, given); } finally { depth = before; }
    }, delay);
    timers.add(id);
    return id;
  };
  window.clearTimeout = (id) => { timers.delete(id); stop(id); };

  const realFetch = window.fetch;
  window.fetch = (...given) => {
    state.pending += 1;
    return realFetch(...given).finally(() => { state.pending -= 1; });
  };
  const send = XMLHttpRequest.prototype.send;
  XMLHttpRequest.prototype.send = function (...given) {
    state.pending += 1;
    this.addEventListener("loadend", () => { state.pending -= 1; }, { once: true });
    return send.apply(this, given);
  };
  // Scripts, styles, frames and pictures that are added once the page is loaded. Those before it waits for itself.
  const added = new Set();
  const isFetched = (node) => node.src && ["SCRIPT", "IFRAME", "IMG"].includes(node.tagName) && node.loading !== "lazy"
    || node.tagName === "LINK" && node.rel === "stylesheet";
  new MutationObserver((records) => {
    if (document.readyState !== "complete") return;
    for (const record of records) {
      for (const node of record.addedNodes) {
        if (node.nodeType !== Node.ELEMENT_NODE) continue;
        for (const one of [node, ...node.querySelectorAll("script, iframe, img, link")]) {
          if (isFetched(one) && !(one.tagName === "IMG" && one.complete)) added.add(one);
        }
      }
    }
  }).observe(document, { subtree: true, childList: true });
  for (const end of ["load", "error"]) {
    window.addEventListener(end, (event) => { added.delete(event.target); }, true);
  }
  const isAdded = () => {
    for (const node of added) if (!node.isConnected) added.delete(node);
    return added.size > 0;
  };
  state.busy = () => state.pending > 0 || timers.size > 0 || isAdded();

  window.addEventListener("click", (event) => {
    const link = event.target instanceof Element ? event.target.closest("a[href], area[href]") : null;
    if (!link || !/^https?:$/.test(link.protocol) || origins.includes(link.origin)) return;
    if (Object.hasOwn(sites, link.host)) {
      link.href = sites[link.host] + link.pathname + link.search + link.hash;
      return;
    }
    event.preventDefault();
    event.stopImmediatePropagation();
    state.refused.push(link.href);
  }, true);
})();
"""

# Waits until a frame was drawn since whose predecessor nothing changed and nothing is waited for. What it gives up
# after is a number of frames: a machine that is busy with other things draws fewer, and the page does less meanwhile.
QUIET = """
new Promise((resolve) => {
  const end = performance.now() + %d;
  let changed = true, frames = 0;
  const observer = new MutationObserver(() => { changed = true; });
  observer.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
  const check = () => {
    const busy = changed || document.readyState !== "complete" || (window.__agentgym && window.__agentgym.busy());
    const late = busy && performance.now() > end;
    if (!busy || late || ++frames > %d) { observer.disconnect(); resolve(late); return; }
    changed = false;
    look();
  };
  const look = () => {
    let due = true;
    const once = () => { if (due) { due = false; check(); } };
    const channel = new MessageChannel();
    channel.port1.onmessage = once;
    requestAnimationFrame(() => channel.port2.postMessage(0));
    if (window.__agentgym) window.__agentgym.later(once, 250);  // for a page that draws no frames
  };
  look();
})
"""

# Where the page is, and what it is.
LOCATION = """
(() => {
  const navigation = performance.getEntriesByType("navigation")[0];
  const refused = window.__agentgym ? window.__agentgym.refused.splice(0) : [];
  return {
    url: location.href,
    title: document.title,
    redirects: navigation ? navigation.redirectCount : 0,
    loaded: performance.timeOrigin,
    failed: location.protocol === "chrome-error:",
    refused,
    scroll: [window.scrollX, window.scrollY],
    session: (() => { try { return sessionStorage.length; } catch { return 0; } })(),
  };
})()
"""

# With an element, or a text in it, as `this`: brings it into the window and says where a pointer meets it.
POINT = """
function () {
  const element = this.nodeType === Node.DOCUMENT_NODE ? this.documentElement
    : this.nodeType === Node.ELEMENT_NODE ? this : this.parentElement;
  if (!this.isConnected || !element) return { gone: true };
  if (element instanceof HTMLInputElement && element.type === "file") return { file: true };
  if (element.closest(":disabled")) return { disabled: true };
  if (element instanceof HTMLOptionElement) return { option: true };
  const inWindow = (box) => box.top >= 0 && box.left >= 0 && box.bottom <= innerHeight && box.right <= innerWidth;
  const boxes = () => {
    const range = document.createRange();
    range.selectNodeContents(this);
    const found = this === element ? element.getClientRects() : range.getClientRects();
    return [...found].filter((box) => box.width > 0 && box.height > 0);
  };
  if (!boxes().length) return { hidden: true };
  if (!inWindow(boxes()[0])) element.scrollIntoView({ block: "center", inline: "nearest", behavior: "instant" });
  const box = boxes()[0];
  const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
  let hit = document.elementFromPoint(x, y);
  for (let inner = hit; inner && inner.shadowRoot; ) {
    inner = inner.shadowRoot.elementFromPoint(x, y);
    if (!inner || inner === hit) break;
    hit = inner;
  }
  const labels = [...(element.labels || [])];
  const met = hit && (element.contains(hit) || hit.contains(element) || labels.some((label) => label.contains(hit)));
  return { x, y, met: Boolean(met) };
}
"""

# What assistive technology does with an element that no pointer reaches.
ACTIVATE = "function () { (this.nodeType === Node.ELEMENT_NODE ? this : this.parentElement).click(); }"

CHOOSE = """
function () {
  const list = this.closest("select");
  if (!list || this.disabled || list.disabled) return false;
  list.focus();
  if (list.multiple) this.selected = !this.selected;
  else list.value = this.value, this.selected = true;
  list.dispatchEvent(new Event("input", { bubbles: true }));
  list.dispatchEvent(new Event("change", { bubbles: true }));
  return true;
}
"""

# Makes a field ready for text, or fills those that take no typing. Says what is left to do.
FILL = """
function (text) {
  const field = this.nodeType === Node.ELEMENT_NODE ? this : this.parentElement;
  if (!this.isConnected || !field) return { gone: true };
  if (field.closest(":disabled") || field.readOnly) return { disabled: true };
  const told = () => {
    field.dispatchEvent(new Event("input", { bubbles: true }));
    field.dispatchEvent(new Event("change", { bubbles: true }));
  };
  if (field instanceof HTMLSelectElement) {
    const plain = (label) => label.trim().replace(/\\s+/g, " ").toLowerCase();
    const options = [...field.options].filter((option) => !option.disabled);
    const chosen = options.find((option) => plain(option.label) === plain(text));
    if (!chosen) return { options: options.map((option) => option.label.trim().replace(/\\s+/g, " ")) };
    field.focus();
    field.value = chosen.value;
    chosen.selected = true;
    told();
    return { done: true };
  }
  if (field instanceof HTMLInputElement) {
    const untyped = ["checkbox", "radio", "button", "submit", "reset", "image", "file", "hidden"];
    if (untyped.includes(field.type)) return { kind: field.type };
    if (["date", "time", "month", "week", "datetime-local", "color", "range"].includes(field.type)) {
      field.focus();
      field.value = text.trim();
      if (field.value !== text.trim()) return { format: field.type };
      told();
      return { done: true };
    }
  } else if (!(field instanceof HTMLTextAreaElement || field.isContentEditable)) {
    return { kind: "no field" };
  }
  field.focus();
  return { insert: true };
}
"""

SCROLL = "window.scrollBy({ top: %d * window.innerHeight, behavior: 'instant' })"
SCROLL_TO = "window.scrollTo({ left: %d, top: %d, behavior: 'instant' })"


def before(now: float | None, origins: Mapping[str, str]) -> str:
    """Return the script that runs before the scripts of every page.

    Args:
        now: The page's date, in seconds since 1970; None for the real one.
        origins: Site name to origin. Links that name a site lead to its origin.
    """
    facts = {
        "now": None if now is None else round(1_000 * now),
        "origins": list(origins.values()),
        "sites": dict(origins),
    }
    return _BEFORE % json.dumps(facts)
