"use strict";
/* A page with its pictures in it: draws each into the element that names it. */

(() => {
  const store = document.getElementById("gpuwatchd-data");
  if (!store) return;
  const { pictures, zones } = JSON.parse(store.textContent);
  for (const element of document.querySelectorAll("[data-chart]")) {
    const picture = pictures[Number(element.dataset.chart)];
    const drawn = element.querySelector("svg");
    const sentence = drawn ? drawn.getAttribute("aria-label") : undefined;
    if (picture) gpuwatchdChart(element, picture, { zones, sentence: sentence || undefined });
  }
})();
