"use strict";
/* What is said of one instant: beside the cursor, and to those who hear the chart. */

const GpuwatchdTip = (() => {
  const MOST = 5;

  function level(chart, at, near) {
    const { facts } = chart;
    const size = GpuwatchdWords.size;
    const gap = GpuwatchdFacts.gapAt(facts, at);
    if (gap) return [{ text: gap.why || GPUWATCHD_DESIGN.legend.gap, faint: true }];
    const future = GpuwatchdFacts.foreseen(facts, at);
    if (future && at > facts.end) {
      if (future.mid >= facts.forecast.limit && future.low >= facts.forecast.limit) return [{ text: "full" }];
      return [{ text: `${size(future.mid)} forecast` }, { text: `${size(future.low)} – ${size(future.high)}`, faint: true }];
    }
    if (near < 0) return [{ text: GPUWATCHD_DESIGN.legend.gap, faint: true }];
    const lines = [{ text: `${size(facts.used[near])} used` }];
    if (facts.high[near] > facts.low[near]) {
      lines.push({ text: `${size(facts.low[near])} – ${size(facts.high[near])}` });
    }
    return lines;
  }

  /* The point that an instant is of; -1 where none is near. */
  function place(chart, at) {
    const { facts } = chart;
    const near = GpuwatchdFacts.nearest(facts, at);
    if (near < 0) return -1;
    const reach = 12 * ((chart.shown()[1] - chart.shown()[0]) / Math.max(chart.plot ? chart.plot.over.clientWidth : 400, 1));
    const between = near > 0 && near + 1 < facts.at.length && facts.used[near - 1] !== null && facts.used[near + 1] !== null;
    return between || Math.abs(facts.at[near] - at) <= Math.max(reach, facts.width) ? near : -1;
  }

  function lines(chart, at) {
    const near = GpuwatchdFacts.gapAt(chart.facts, at) ? -1 : place(chart, at);
    const when = near < 0 ? at : chart.facts.at[near];
    const seconds = near >= 0 && chart.facts.width < 60 && chart.shown()[1] - chart.shown()[0] < 2 * 86400;
    const found = [{ text: chart.clock.moment(when, seconds), strong: true }, ...level(chart, at, near)];
    const width = chart.plot ? chart.plot.over.clientWidth : 400;
    const reach = GpuwatchdHands.NEAR * ((chart.shown()[1] - chart.shown()[0]) / Math.max(width, 1));
    const marks = chart.facts.marks.filter((mark) => Math.abs(mark.at - at) <= reach);
    for (const mark of marks.slice(0, MOST)) {
      found.push({ text: `${mark.glyph} ${chart.clock.time(mark.at, false)} ${mark.text}`, colour: mark.colour });
    }
    if (marks.length > MOST) found.push({ text: `and ${marks.length - MOST} more`, faint: true });
    return found;
  }

  function write(tip, found) {
    tip.replaceChildren(
      ...found.map((line) => {
        const row = document.createElement(line.strong ? "strong" : "span");
        row.textContent = line.text;
        row.className = line.faint ? "faint" : line.colour ? `ink-${line.colour}` : "";
        return row;
      }),
    );
  }

  function show(chart, at) {
    const { tip, line, dot } = chart.ui;
    const [low, high] = chart.shown();
    const hide = at === null || at < low || at > high;
    tip.hidden = line.hidden = hide;
    dot.hidden = true;
    if (hide) return;
    const { facts, plot } = chart;
    const near = GpuwatchdFacts.gapAt(facts, at) ? -1 : place(chart, at);
    const future = at > facts.end && GpuwatchdFacts.foreseen(facts, at);
    const x = plot.valToPos(near < 0 || future ? at : facts.at[near], "x");
    line.style.transform = `translateX(${Math.round(x)}px)`;
    if (near >= 0 && !future) {
      dot.hidden = false;
      dot.style.transform = `translate(${x}px, ${plot.valToPos(facts.used[near], "y")}px)`;
    }
    write(tip, lines(chart, at));
    const width = plot.over.clientWidth;
    const own = tip.offsetWidth;
    const left = x + 14 + own > width ? x - 14 - own : x + 14;
    tip.style.transform = `translate(${Math.round(Math.max(Math.min(left, width - own), 0))}px, 8px)`;
  }

  return { lines, show };
})();
