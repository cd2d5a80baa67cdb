"use strict";
/* Draws what uPlot does not know of: gaps, floor, fit, forecast, limit, now and marks. */

const GpuwatchdPaint = (() => {
  const FLAG = 9;
  const FAMILY = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
  const FONT = `12px ${FAMILY}`;

  function colours(element) {
    const style = getComputedStyle(element);
    return (name) => style.getPropertyValue(`--${name}`).trim() || "#888888";
  }

  /* Runs `draw` with the chart's own pixels, clipped to where the curve may be. */
  function within(chart, draw, whole) {
    const { ctx, bbox } = chart.plot;
    const ratio = uPlot.pxRatio;
    ctx.save();
    ctx.scale(ratio, ratio);
    const box = {
      left: bbox.left / ratio, top: bbox.top / ratio, width: bbox.width / ratio, height: bbox.height / ratio,
    };
    box.right = box.left + box.width;
    box.bottom = box.top + box.height;
    if (!whole) {
      ctx.beginPath();
      ctx.rect(box.left, box.top, box.width, box.height);
      ctx.clip();
    }
    const x = (at) => box.left + chart.plot.valToPos(at, "x");
    const y = (bytes) => box.top + chart.plot.valToPos(bytes, "y");
    draw(ctx, box, x, y);
    ctx.restore();
  }

  function below(chart) {
    within(chart, (ctx, box, x, y) => {
      for (const gap of chart.facts.gaps) hatch(ctx, box, x(gap.begin), x(gap.end), chart.colour);
      cone(ctx, box, x, y, chart);
    });
  }

  function hatch(ctx, box, begin, end, colour) {
    const left = Math.max(begin, box.left);
    const right = Math.min(Math.max(end, begin + 1), box.right);
    if (right <= left) return;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, box.top, right - left, box.height);
    ctx.clip();
    ctx.fillStyle = colour("surface");
    ctx.fillRect(left, box.top, right - left, box.height);
    ctx.strokeStyle = colour("gap");
    ctx.lineWidth = 1.5;
    ctx.beginPath();
    for (let at = Math.floor((left - box.height) / 8) * 8; at < right; at += 8) {
      ctx.moveTo(at, box.bottom);
      ctx.lineTo(at + box.height, box.top);
    }
    ctx.stroke();
    ctx.restore();
  }

  /* Where the memory will be: between the fastest and the slowest growth; open: it may stay. */
  function cone(ctx, box, x, y, chart) {
    const forecast = chart.facts.forecast;
    if (!forecast || forecast.low === null || forecast.limit === null) return;
    const from = [x(forecast.judged), y(forecast.level)];
    const top = y(forecast.limit);
    const early = x(forecast.judged + forecast.low);
    ctx.save();
    ctx.globalAlpha = GPUWATCHD_DESIGN.bandOpacity;
    ctx.fillStyle = chart.colour("band");
    ctx.beginPath();
    ctx.moveTo(...from);
    ctx.lineTo(early, top);
    if (forecast.high === null) {
      const far = Math.max(box.right, early);
      const fade = ctx.createLinearGradient(from[0], 0, far, 0);
      fade.addColorStop(0, chart.colour("band"));
      fade.addColorStop(1, `${chart.colour("band")}00`);
      ctx.fillStyle = fade;
      ctx.lineTo(far, top);
      ctx.lineTo(far, from[1]);
    } else {
      ctx.lineTo(x(forecast.judged + forecast.high), top);
    }
    ctx.closePath();
    ctx.fill();
    ctx.restore();
  }

  function above(chart) {
    within(chart, (ctx, box, x, y) => {
      floor(ctx, x, y, chart);
      alone(ctx, x, y, chart);
      fit(ctx, x, y, chart);
      limit(ctx, box, y, chart);
      now(ctx, box, x, chart);
    });
    within(chart, (ctx, box, x) => flags(ctx, box, x, chart), true);
    within(chart, (ctx, box, x, y) => words(ctx, box, x, y, chart), true);
  }

  function stroke(ctx, colour, width, dash) {
    ctx.strokeStyle = colour;
    ctx.lineWidth = width;
    ctx.setLineDash(dash || []);
    ctx.stroke();
    ctx.setLineDash([]);
  }

  function floor(ctx, x, y, chart) {
    const line = chart.facts.floor;
    if (!line) return;
    ctx.beginPath();
    let drawing = false;
    line.at.forEach((at, n) => {
      const level = line.used[n];
      if (level === null) drawing = false;
      else {
        if (drawing) ctx.lineTo(x(at), y(level));
        else ctx.moveTo(x(at), y(level));
        drawing = true;
      }
    });
    stroke(ctx, chart.colour("floor"), 1.75, GPUWATCHD_DESIGN.floorDash);
  }

  /* A sample between two gaps has no line: a dot. */
  function alone(ctx, x, y, chart) {
    const { at, used } = chart.facts;
    ctx.fillStyle = chart.colour("curve");
    at.forEach((when, n) => {
      if (used[n] === null || (n > 0 && used[n - 1] !== null) || (n + 1 < at.length && used[n + 1] !== null)) return;
      ctx.beginPath();
      ctx.arc(x(when), y(used[n]), 3, 0, 2 * Math.PI);
      ctx.fill();
    });
  }

  function fit(ctx, x, y, chart) {
    const forecast = chart.facts.forecast;
    if (!forecast) return;
    const onset = forecast.onset === null ? forecast.judged : Math.max(forecast.onset, forecast.judged - 1e9);
    ctx.beginPath();
    ctx.moveTo(x(onset), y(forecast.level - forecast.rate * (forecast.judged - onset)));
    ctx.lineTo(x(forecast.judged), y(forecast.level));
    if (forecast.mid !== null && forecast.limit !== null) ctx.lineTo(x(forecast.judged + forecast.mid), y(forecast.limit));
    stroke(ctx, chart.colour("fit"), 1.5, GPUWATCHD_DESIGN.fitDash);
    if (forecast.mid === null || forecast.limit === null) return;
    ctx.beginPath();
    ctx.arc(x(forecast.judged + forecast.mid), y(forecast.limit), 3.5, 0, 2 * Math.PI);
    ctx.fillStyle = chart.colour("fit");
    ctx.fill();
  }

  function limit(ctx, box, y, chart) {
    const bytes = chart.facts.limit;
    if (bytes === null) return;
    const at = Math.round(y(bytes)) + 0.5;
    ctx.beginPath();
    ctx.moveTo(box.left, at);
    ctx.lineTo(box.right, at);
    stroke(ctx, chart.colour("limit"), 1.75);
  }

  function now(ctx, box, x, chart) {
    const at = Math.round(x(chart.facts.now)) + 0.5;
    if (!(at > box.left && at < box.right - 2)) return;
    ctx.beginPath();
    ctx.moveTo(at, box.top);
    ctx.lineTo(at, box.bottom);
    stroke(ctx, chart.colour("now"), 1, [1, 3]);
  }

  function write(ctx, text, left, base, colour, ground, align) {
    ctx.textAlign = align || "left";
    ctx.textBaseline = "alphabetic";
    ctx.lineJoin = "round";
    ctx.strokeStyle = ground;
    ctx.lineWidth = 4;
    ctx.strokeText(text, left, base);
    ctx.fillStyle = colour;
    ctx.fillText(text, left, base);
  }

  function words(ctx, box, x, y, chart) {
    const { facts, colour } = chart;
    const ground = colour("paper");
    ctx.font = FONT;
    let taken = box.left;
    if (facts.limit !== null) {
      const at = y(facts.limit);
      const beyond = at < box.top;
      const text = `${GPUWATCHD_DESIGN.legend.limit} ${GpuwatchdWords.size(facts.limit)}${beyond ? " ↑" : ""}`;
      if (at <= box.bottom) {
        const base = at - box.top < 18 ? Math.max(at, box.top) + 15 : at - 5;
        write(ctx, text, box.left + 6, base, colour("limit"), ground);
        taken += 12 + ctx.measureText(text).width;
      }
    }
    const forecast = facts.forecast;
    if (forecast && forecast.mid !== null && forecast.limit !== null) {
      const end = x(forecast.judged + forecast.mid);
      const at = y(forecast.limit);
      const full = chart.clock.near(forecast.judged + forecast.mid, facts.now);
      const when = `full ${full}${end > box.right ? " →" : ""}`;
      const width = ctx.measureText(when).width;
      const left = Math.min(Math.max(end - width / 2, taken + 8), box.right - width - 4);
      if (end > box.left && at >= box.top && left > taken) {
        write(ctx, when, left, at - box.top < 18 ? at + 17 : at - 7, colour("ink"), ground);
      }
    }
    const now = x(facts.now);
    if (now > box.left + 4 && now < box.right - 30) write(ctx, GPUWATCHD_DESIGN.legend.now, now + 4, box.bottom - 6, colour("faint"), ground);
    for (const gap of facts.gaps) {
      const left = Math.max(x(gap.begin), box.left);
      const right = Math.min(x(gap.end), box.right);
      const text = gap.why || GPUWATCHD_DESIGN.legend.gap;
      if (ctx.measureText(text).width < right - left - 12) {
        write(ctx, text, (left + right) / 2, box.top + box.height / 2, colour("faint"), colour("surface"), "center");
      }
    }
  }

  /* Marks that would cover each other become one with their number. */
  function clusters(chart, x, box) {
    const found = [];
    for (const mark of chart.facts.marks) {
      const at = x(mark.at);
      if (at < box.left - 1 || at > box.right + 1) continue;
      const last = found[found.length - 1];
      if (last && at - last.right < 2 * FLAG) {
        last.marks.push(mark);
        last.right = at;
      } else found.push({ left: at, right: at, marks: [mark] });
    }
    return found;
  }

  function flags(ctx, box, x, chart) {
    chart.clusters = clusters(chart, x, box);
    for (const cluster of chart.clusters) {
      const worst = cluster.marks.reduce((one, other) => (other.weight > one.weight ? other : one));
      const at = (cluster.left + cluster.right) / 2;
      cluster.at = at - box.left;
      ctx.beginPath();
      for (const mark of cluster.marks) {
        const line = Math.round(x(mark.at)) + 0.5;
        ctx.moveTo(line, box.top);
        ctx.lineTo(line, box.bottom);
      }
      ctx.globalAlpha = 0.55;
      stroke(ctx, chart.colour(worst.colour), 1, [2, 2]);
      ctx.globalAlpha = 1;
      const label = cluster.marks.length > 1 ? `${worst.glyph}${cluster.marks.length}` : worst.glyph;
      ctx.font = `bold 14px ${FAMILY}`;
      write(ctx, label, at, box.top - 7, chart.colour(worst.colour), chart.colour("paper"), "center");
    }
  }

  return { above, below, colours };
})();
