/* What a page without it cannot do: times in the viewer's zone, fragments that follow what happens, dialogs. */
"use strict";

const POLL_MS = 5000;

/* Times: "14:02, 3 min ago", with the exact one as title. */
function ago(seconds) {
  const [past, s] = [seconds >= 0, Math.abs(seconds)];
  const [value, unit] = s < 90 ? [s, "s"] : s < 5400 ? [s / 60, "min"] : s < 129600 ? [s / 3600, "h"] : [s / 86400, "days"];
  if (s < 5) return "now";
  return past ? `${Math.round(value)} ${unit} ago` : `in ${Math.round(value)} ${unit}`;
}

function sayTimes() {
  const now = new Date();
  for (const element of document.querySelectorAll("time[datetime]")) {
    const at = new Date(element.dateTime);
    const clock = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
    const isToday = at.toDateString() === now.toDateString();
    const day = at.toLocaleDateString([], { day: "numeric", month: "short" });
    const isAnnounced = element.closest("[role=status]") !== null; // a screen reader would read it out again and again
    const text = `${isToday ? clock : `${day}, ${clock}`}${isAnnounced ? "" : `, ${ago((now - at) / 1000)}`}`;
    if (element.textContent !== text) element.textContent = text;
    element.title = `${at.toLocaleString([], { dateStyle: "full", timeStyle: "long" })} (${at.toISOString()})`;
  }
}

/* Polling: not while nobody looks, and not under somebody's hands. */
function poll() {
  if (document.hidden || document.getElementById("dialog")?.open) return;
  htmx.trigger(document.body, "poll");
}

function isInUse(region) {
  const isSelecting = !getSelection().isCollapsed && region.contains(getSelection().anchorNode);
  return isSelecting || region.contains(document.activeElement) || region.querySelector("input:checked") !== null;
}

document.addEventListener("htmx:beforeRequest", (event) => {
  const region = event.detail.elt;
  if (event.detail.requestConfig.triggeringEvent?.type === "poll" && region.id !== "notices" && isInUse(region)) event.preventDefault();
});

/* What is announced is swapped only when it says something else. */
let announced = null;
document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.target.id !== "notices") return;
  if (event.detail.serverResponse === announced) event.detail.shouldSwap = false;
  announced = event.detail.serverResponse;
});

document.addEventListener("visibilitychange", poll);
setInterval(poll, POLL_MS);
setInterval(sayTimes, 10000);

/* Dialogs: what htmx brings into the dialog is shown there; without a script, the same is a page. */
document.addEventListener("htmx:afterSwap", (event) => {
  sayTimes();
  markPicked();
  if (event.detail.target.id === "dialog-body") document.getElementById("dialog").showModal();
});

document.addEventListener("click", (event) => {
  const close = event.target.closest("dialog [data-close]");
  if (close) {
    event.preventDefault();
    close.closest("dialog").close();
  }
});

/* Choosing rows. */
function markPicked() {
  const picked = document.querySelectorAll("input[name=id]:checked").length;
  for (const button of document.querySelectorAll("[data-needs-picked]")) button.disabled = picked === 0;
  for (const all of document.querySelectorAll("[data-pick-all]")) {
    const boxes = document.querySelectorAll("input[type=checkbox][name=id]").length;
    all.checked = picked > 0 && picked === boxes;
    all.indeterminate = picked > 0 && picked < boxes;
  }
}

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-pick-all]")) {
    for (const box of document.querySelectorAll("input[type=checkbox][name=id]")) box.checked = event.target.checked;
  }
  if (event.target.matches("input[type=checkbox]")) markPicked();
  if (event.target.matches(".filters select")) event.target.form.requestSubmit();
});

/* An address without what is empty can be read and shared. */
document.addEventListener("submit", (event) => {
  if (!event.target.matches(".filters")) return;
  for (const field of event.target.elements) if (field.name && !field.value) field.disabled = true;
});
window.addEventListener("pageshow", () => {
  for (const field of document.querySelectorAll(".filters :disabled")) field.disabled = false;
});

/* Plots: drawn from what the server put beside them, and again when that or the room for it changes. */
const plots = new Map();

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function shownValue(unit) {
  return (_, value) => (value === null || value === undefined ? "–" : `${Math.round(value).toLocaleString()}${unit ? ` ${unit}` : ""}`);
}

function shownTicks(_, ticks, __, ___, step) {
  const clock = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  return ticks.map((tick) => {
    const at = new Date(tick * 1000);
    const isDay = step >= 86400 || (at.getHours() === 0 && at.getMinutes() === 0);
    return isDay ? at.toLocaleDateString([], { day: "numeric", month: "short" }) : at.toLocaleTimeString([], clock);
  });
}

function draw(element) {
  const source = element.dataset.from ? document.querySelector(element.dataset.from) : element;
  if (!source || typeof uPlot === "undefined") return;
  const { labels, data, unit } = JSON.parse(source.dataset.plot);
  const isSmall = element.classList.contains("small");
  const known = plots.get(element);
  if (known && known.width === element.clientWidth) {
    known.setData(data);
    return;
  }
  known?.destroy();
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 }, font: "12px system-ui" };
  const series = labels.map((label, index) => ({
    label,
    stroke: colour(`--series-${index + 1}`),
    width: isSmall ? 1.5 : 2,
    dash: index === 3 ? [6, 4] : undefined,
    points: { size: 4 },
    spanGaps: false,
    value: shownValue(unit),
  }));
  const options = {
    width: element.clientWidth,
    height: isSmall ? 150 : 260,
    legend: { live: !isSmall, markers: { fill: (_, index) => colour(`--series-${index}`), width: 0 } },
    cursor: { drag: { x: false, y: false } },
    scales: { y: { range: (_, __, most) => [0, Math.max(most || 0, unit ? 10 : 4) * 1.08] } },
    axes: [{ ...axis, values: shownTicks }, { ...axis, size: unit ? 72 : 52, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? shownValue(unit)(_, tick) : "")) }],
    series: [{ value: (_, at) => (at ? new Date(at * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "short" }) : "–") }, ...series],
  };
  plots.set(element, new uPlot(options, data, element));
}

function drawAll() {
  for (const element of plots.keys()) if (!element.isConnected) { plots.get(element).destroy(); plots.delete(element); }
  document.querySelectorAll(".plot").forEach(draw);
}

function drawAnew() {
  for (const plot of plots.values()) plot.destroy();
  plots.clear();
  drawAll();
}

window.addEventListener("resize", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAnew);
document.addEventListener("htmx:afterSettle", drawAll);

sayTimes();
markPicked();
drawAll();
document.querySelector(".top nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" }); // on a phone

/* Copying what a button names. */
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const source = document.querySelector(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(source.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(source); // a browser copies by itself over https and on this machine only
    button.textContent = "Selected: copy it";
  }
});
