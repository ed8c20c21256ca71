// Pages work without this. It keeps live pages fresh, and keeps a question from being asked twice.
"use strict";

for (const form of document.querySelectorAll("form[data-ask]")) {
  form.addEventListener("submit", (event) => {
    const button = event.submitter;
    if (form.dataset.sent) { event.preventDefault(); return; }
    form.dataset.sent = "yes";
    if (button && button.value === "ask") {
      button.textContent = "Asking …";
      setTimeout(() => { button.disabled = true; }, 0); // after the form took the button's value
    }
  });
}
addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

const live = document.querySelector("main[data-live]");
async function refresh() {
  if (document.hidden || live.contains(document.activeElement) && document.activeElement !== live) return;
  if ([...live.querySelectorAll("input:not([type=hidden])")].some((one) => one.value !== one.defaultValue)) return;
  const answer = await fetch(location.href, { headers: { "x-desk-refresh": "1" } });
  if (!answer.ok || answer.redirected) { location.reload(); return; }
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.querySelector("main");
  if (fresh && fresh.innerHTML !== live.innerHTML) live.innerHTML = fresh.innerHTML;
}
if (live) setInterval(() => refresh().catch(() => {}), 5000);

// The planner: sliders write ε, and the price follows.
const plan = document.querySelector("form[data-plan]");
if (plan) {
  let waiting = 0, asked = 0;
  const price = async () => {
    const mine = ++asked, words = new URLSearchParams(new FormData(plan));
    const answer = await fetch("/plan?" + words);
    if (!answer.ok || answer.redirected || mine !== asked) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.querySelector("#priced").innerHTML = page.querySelector("#priced").innerHTML;
    history.replaceState(null, "", "/plan?" + words);
  };
  for (const slider of plan.querySelectorAll("input[data-slides]")) {
    const field = document.getElementById(slider.dataset.slides);
    slider.value = Math.log10(parseFloat(field.value) || 0.1);
    slider.addEventListener("input", () => { field.value = Number((10 ** slider.value).toPrecision(3)); });
    field.addEventListener("input", () => { slider.value = Math.log10(parseFloat(field.value) || 0.1); });
  }
  plan.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(() => price().catch(() => {}), 300); });
}
