/* What a page without it cannot do: times as durations, fragments that follow what happens, dialogs. */
"use strict";

const POLL_MS = 5000;
const NEAR_S = 3600;

/* Times: the server shows them in its time zone. What is near is shown as a duration; the title has the exact time. */
function ago(seconds) {
  const s = Math.abs(seconds);
  const text = s < 90 ? `${Math.round(s)} s` : `${Math.round(s / 60)} min`;
  return s < 5 ? "now" : seconds > 0 ? `${text} ago` : `in ${text}`;
}

function sayTimes() {
  const now = Date.now();
  for (const element of document.querySelectorAll("time[datetime]")) {
    element.dataset.clock ??= element.textContent;
    const seconds = (now - new Date(element.dateTime)) / 1000;
    const isAnnounced = element.closest("[role=status]") !== null; // a screen reader would read it out again and again
    const isPast = seconds > 0 && element.closest(".countdown") !== null;
    const text = isAnnounced || Math.abs(seconds) > NEAR_S ? element.dataset.clock : isPast ? "now" : ago(seconds);
    if (element.textContent !== text) element.textContent = text;
  }
}

/* Polling: not while nobody looks, and not under somebody's hands. */
function poll() {
  if (document.hidden || document.getElementById("dialog")?.open) return;
  htmx.trigger(document.body, "poll");
}

function isInUse(region) {
  const isSelecting = !getSelection().isCollapsed && region.contains(getSelection().anchorNode);
  const isOpen = region.querySelector("input:checked, details[open]") !== null;
  return isSelecting || region.contains(document.activeElement) || isOpen;
}

document.addEventListener("htmx:beforeRequest", (event) => {
  const region = event.detail.elt;
  if (event.detail.requestConfig.triggeringEvent?.type === "poll" && isInUse(region)) event.preventDefault();
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
setInterval(sayTimes, 1000);

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
  for (const text of document.querySelectorAll("[data-picked]")) text.textContent = picked ? `${picked} selected` : "Selected";
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

/* A URL without empty fields can be read and shared. */
document.addEventListener("submit", (event) => {
  if (!event.target.matches(".filters")) return;
  for (const field of event.target.elements) if (field.name && !field.value) field.disabled = true;
});
window.addEventListener("pageshow", () => {
  for (const field of document.querySelectorAll(".filters :disabled")) field.disabled = false;
});

sayTimes();
markPicked();
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
    getSelection().selectAllChildren(source); // browsers allow copying only over https and on this machine
    button.textContent = "Selected: copy it";
  }
});
