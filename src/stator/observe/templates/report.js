"use strict";
const root = document.documentElement;
const search = document.getElementById("search");
const found = document.getElementById("found");

document.getElementById("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});

const items = Array.from(document.querySelectorAll(".item"));
const texts = new Map();
const textOf = (item) => {
  if (!texts.has(item)) texts.set(item, item.textContent.toLowerCase());
  return texts.get(item);
};
const find = () => {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const item of items) {
    const match = words.every((word) => textOf(item).includes(word));
    item.classList.toggle("hidden", !match);
    if (match) count += 1;
  }
  for (const section of document.querySelectorAll("section")) {
    const inside = section.querySelectorAll(".item");
    const empty = inside.length > 0 && Array.from(inside).every((item) => item.classList.contains("hidden"));
    section.classList.toggle("hidden", empty && words.length > 0);
  }
  found.textContent = words.length ? `${count} of ${items.length}` : "";
};
let waiting = 0;
search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(find, 120); });
addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== search) { event.preventDefault(); search.focus(); }
});

const openTarget = () => {
  let node = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const target = node;
  for (; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
  if (target) target.scrollIntoView();
};
addEventListener("hashchange", openTarget);
openTarget();
if (new URLSearchParams(location.search).has("search")) {
  search.value = new URLSearchParams(location.search).get("search");
  find();
}
addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details.card")) part.open = true;
});
root.dataset.ready = String(Math.round(performance.now()));
