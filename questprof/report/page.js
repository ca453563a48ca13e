"use strict";
// Draws the figures. Every number comes from the page; a profile's text is never read as code or markup.
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const themes = [matchMedia("(prefers-color-scheme: dark)"), matchMedia("print")];
  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const COLOURS = { "dense-floor": "dense", "quest-floor": "quest", ceiling: "muted", crossing: "ink" };
  const CONFIG = { displaylogo: false, responsive: true, showSendToCloud: false, plotlyServerURL: "",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
  const NARROW = 520, LEGEND_ENTRY = 135, PLAIN_ENTRY = 215, LEGEND_ROW = 20, TICKS_AND_TITLE = 90;

  const digits = (value) => (value >= 100 ? String(Math.round(value)) : String(Number(value.toPrecision(3))));
  const tokens = (length) => (length < 1024 ? `${Math.round(length)}` : `${Number((length / 1024).toPrecision(3))}k`);

  // Lines of one hover label; names come escaped, the rest is numbers and our own words.
  function hover(trace, length, i) {
    const { y, spread, source } = trace.meta;
    const lines = [`${trace.name}, ${tokens(length)} tokens`];
    if (y.us[i] !== null) lines.push(`<b>${digits(y.us[i])} us</b>, ${source}`);
    if (spread[i]) lines.push(`p10 to p90: ${digits(spread[i][0])} to ${digits(spread[i][1])} us, ${spread[i][2]} samples`);
    if (y.x[i] !== null) lines.push(`${digits(y.x[i])} x fastest dense`);
    if (y.gb_s[i] !== null) lines.push(y.us[i] === null ? `${digits(y.gb_s[i])} GB/s, ${source}`
      : `${digits(y.gb_s[i])} GB/s of equation (12)'s bytes, modelled: formula`);
    return lines.join("<br>");
  }

  function restyled(trace, unit, budget) {
    const { role, budget: own, y } = trace.meta;
    const focus = own === null || own === budget;
    const total = role === "quest" || role === "crossing";
    const paint = colour(COLOURS[role] || role);
    const width = role.endsWith("floor") || role === "ceiling" ? 1.5 : role === "quest" ? (focus ? 3.5 : 1.5) : 2;
    return {
      ...trace,
      y: y[unit],
      hoverinfo: "text",
      hovertext: trace.x.map((length, i) => hover(trace, length, i)),
      visible: y[unit].some((value) => value !== null) && (focus || total),
      opacity: focus ? 1 : 0.65,
      line: { ...trace.line, color: paint, width },
      marker: { ...trace.marker, color: paint, size: role === "crossing" ? (focus ? 12 : 8) : 8 },
      textfont: { color: paint },
    };
  }

  function marked(crossing, axis) {
    const ink = colour("ink");
    const [low, high] = axis.map(Math.log10);
    const right = (Math.log10(crossing.x) - low) / (high - low) > 0.6;
    return {
      shapes: [{ type: "line", x0: crossing.x, x1: crossing.x, yref: "paper", y0: 0, y1: 1, layer: "below",
        line: { color: ink, width: 1.5, dash: "dot" } }],
      annotations: [{ x: Math.log10(crossing.x), yref: "paper", y: 1, yanchor: "bottom", xanchor: right ? "right" : "left",
        text: crossing.label, showarrow: false, font: { color: ink, size: 14 } }],
    };
  }

  const axisLines = () => ({ gridcolor: colour("grid"), linecolor: colour("muted"), zeroline: false, ticks: "outside", tickcolor: colour("grid") });

  // What all figures share: colours of the theme, margins, a legend below in rows of `entry` pixels.
  function frame(width, entries, right, entry) {
    const left = width < NARROW ? 48 : 64;
    // The legend is as wide as the axes, and plotly moves these right until tick labels and title fit.
    const legendRows = Math.ceil(entries / Math.max(1, Math.floor((width - Math.max(left, TICKS_AND_TITLE) - right) / (entry + 45))));
    return {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("ink") },
      margin: { l: left, r: right, t: 36, b: (width < NARROW ? 74 : 58) + legendRows * LEGEND_ROW },
      legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0, xanchor: "left", entrywidth: entry,
        entrywidthmode: "pixels" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("muted"), activecolor: colour("ink") },
      hoverlabel: { align: "left", bgcolor: colour("raised"), bordercolor: colour("rule"), font: { color: colour("ink"), family: getComputedStyle(document.body).fontFamily, size: 13 } },
      hovermode: "closest",
    };
  }

  function layout(spec, unit, budget, width, entries) {
    const crossing = spec.crossings.find((one) => one.budget === budget);
    const ticks = spec.layout.xaxis.tickvals;
    const { title, type } = spec.units[unit];
    return {
      ...spec.layout,
      ...frame(width, entries, spec.budgets.length > 1 ? 52 : 16, LEGEND_ENTRY),
      uirevision: unit,
      xaxis: { ...spec.layout.xaxis, ...axisLines() },
      yaxis: { ...axisLines(), type, automargin: true, title: { text: title, standoff: 8 }, rangemode: type === "linear" ? "tozero" : "normal",
        tickformat: "~g", exponentformat: "none", dtick: type === "log" ? "D2" : undefined },
      ...(crossing ? marked(crossing, [ticks[0], ticks[ticks.length - 1]]) : {}),
    };
  }

  function draw(panel) {
    if (panel.hidden || !window.Plotly) return;
    if (!panel.querySelector("input")) { drawPlain(panel); return; }
    const spec = panel.spec || (panel.spec = JSON.parse(panel.querySelector(".figure-data").textContent));
    const chosen = (name) => {
      const inputs = [...panel.querySelectorAll("input")].filter((input) => input.name === `${panel.id}-${name}`);
      return (inputs.find((input) => input.checked) || inputs[0]).value;
    };
    const unit = chosen("unit"), budget = Number(chosen("budget"));
    const plot = panel.querySelector(".plot");
    const traces = spec.data.map((trace) => restyled(trace, unit, budget));
    const entries = traces.filter((trace) => trace.visible && trace.showlegend !== false).length;
    const width = plot.clientWidth;
    Plotly.react(plot, traces, layout(spec, unit, budget, width, entries), { ...CONFIG, displayModeBar: width < NARROW ? false : "hover" });
  }

  // A figure without controls: a trace's role is its colour, its hover texts come escaped.
  function drawPlain(figure) {
    if (!window.Plotly || !figure.querySelector(".figure-data")) return;
    const spec = figure.spec || (figure.spec = JSON.parse(figure.querySelector(".figure-data").textContent));
    const plot = figure.querySelector(".plot");
    const width = plot.clientWidth;
    const traces = spec.data.map((trace) => {
      const paint = colour(trace.meta.role);
      return { ...trace, hoverinfo: "text", hovertext: trace.meta.hover, line: { ...trace.line, color: paint, width: 2 },
        marker: { ...trace.marker, color: paint, size: 9 } };
    });
    const { xaxis, yaxis, barmode } = spec.layout;
    const ticks = (axis) => (axis.type === "log" && !axis.tickvals ? { tickformat: "~r", dtick: 1 } : { tickformat: "~g" });
    const axes = { xaxis: { ...xaxis, ...axisLines(), ...(xaxis.tickvals ? {} : ticks(xaxis)) },
      yaxis: { ...yaxis, ...axisLines(), ...ticks(yaxis), automargin: true } };
    Plotly.react(plot, traces, { ...frame(width, traces.length, 16, PLAIN_ENTRY), ...axes, ...(barmode ? { barmode } : {}) }, { ...CONFIG, displayModeBar: width < NARROW ? false : "hover" });
  }

  // Shows the panel that agrees with most selectors, the one just changed before all others.
  function choose(scan, panels, changed) {
    const selects = [...scan.querySelectorAll("select")];
    const agree = (panel, select) => (panel.settings[select.dataset.setting] || "-") === select.value;
    const score = (panel) =>
      selects.reduce((sum, select) => sum + agree(panel, select) * (select === changed ? 1000 : 1), 0);
    const best = panels.reduce((one, other) => (score(other) > score(one) ? other : one));
    panels.forEach((panel) => { panel.hidden = panel !== best; });
    selects.forEach((select) => { select.value = best.settings[select.dataset.setting] || "-"; });
    draw(best);
  }

  const all = [];
  document.querySelectorAll(".scan").forEach((scan) => {
    const panels = [...scan.querySelectorAll(".panel")];
    panels.forEach((panel) => {
      panel.settings = JSON.parse(panel.dataset.settings);
      panel.addEventListener("change", () => draw(panel));
    });
    scan.querySelectorAll("select").forEach((select) =>
      select.addEventListener("change", () => choose(scan, panels, select)));
    choose(scan, panels, null);
    all.push(...panels);
  });
  const plain = [...document.querySelectorAll(".plain-figure")];
  plain.forEach(drawPlain);
  const redraw = () => { all.forEach(draw); plain.forEach(drawPlain); };
  themes.forEach((theme) => theme.addEventListener("change", redraw));
  let waiting = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(redraw);
  });
})();
