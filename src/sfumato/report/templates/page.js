// The slider. Without it the page shows the same digits as a grid.
(() => {
  const figure = document.querySelector(".dissolve");
  const data = document.getElementById("levels");
  if (!figure || !data) return;
  const levels = JSON.parse(data.textContent);
  const strip = figure.querySelector(".live .strip");
  const slider = figure.querySelector("input");
  const percent = (share) => (100 * share).toFixed(share < 0.995 ? 1 : 2) + "%";
  const charts = [...figure.querySelectorAll(".follow")].map((chart) => ({
    places: JSON.parse(chart.dataset.places),
    readable: chart.querySelector(".marker.readable"),
    holder: chart.querySelector(".marker.holder"),
  }));

  function show(number) {
    const level = levels[number];
    strip.style.backgroundPosition = `0 ${level.position}%`;
    strip.setAttribute("aria-label", `Ten digits with the noise of ε = ${level.label}`);
    slider.setAttribute("aria-valuetext", `ε = ${level.label}`);
    figure.querySelector("output").textContent = level.label;
    figure.querySelector(".blurred b").textContent = percent(level.readable);
    const held = figure.querySelector(".held");
    held.hidden = level.holder === null;
    if (level.holder !== null) held.querySelector("b").textContent = (level.measured ? "" : "≥ ") + percent(level.holder);
    for (const chart of charts) {
      const [x, readable, holder] = chart.places[Math.min(number, chart.places.length - 1)];
      chart.readable.setAttribute("cx", x);
      chart.readable.setAttribute("cy", readable);
      if (!chart.holder) continue;
      chart.holder.style.visibility = holder === null ? "hidden" : "visible";
      chart.holder.setAttribute("cx", x);
      if (holder !== null) chart.holder.setAttribute("cy", holder);
    }
  }

  slider.addEventListener("input", () => show(Number(slider.value)));
  figure.querySelector(".live").hidden = false;
  figure.classList.add("moving");
  show(Number(slider.value));
})();
