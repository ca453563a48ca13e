"use strict";
// Draws the figures. Every number comes from the page; a profile's text is never read as code or markup.
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const themes = [matchMedia("(prefers-color-scheme: dark)"), matchMedia("print")];
  const plain = [...document.querySelectorAll(".plain-figure")];
  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const COLOURS = { "dense-floor": "dense", "quest-floor": "quest", ceiling: "muted", crossing: "ink", predicted: "ink" };
  const CONFIG = { displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
  const NARROW = 520, LEGEND_ENTRY = 135, PLAIN_ENTRY = 215, LEGEND_ROW = 20, TICKS_AND_TITLE = 90, CELL_HEIGHT = 18, CELL_WIDTH = 24;

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
    const mark = role === "crossing" || role === "predicted";
    const paint = colour(COLOURS[role] || role);
    const width = role.endsWith("floor") || role === "ceiling" ? 1.5 : role === "quest" ? (focus ? 3.5 : 1.5) : 2;
    return {
      mode: "lines+markers",
      ...trace,
      y: y[unit],
      hoverinfo: "text",
      hovertext: trace.x.map((length, i) => hover(trace, length, i)),
      visible: y[unit].some((value) => value !== null) && (focus || total),
      opacity: focus ? 1 : 0.65,
      line: { ...trace.line, color: paint, width },
      marker: { ...trace.marker, color: paint, size: mark ? (focus ? 12 : 8) : 8, ...(mark ? { line: { width: 2, color: paint } } : {}) },
      textfont: { color: paint },
      ...(focus ? bars(trace, unit, paint) : {}),
    };
  }

  // 10th to 90th percentile of every point, in the unit of the curve; GB/s turn the interval round.
  function bars(trace, unit, paint) {
    const { y, spread } = trace.meta;
    if (!spread.some((one) => one)) return {};
    const scaled = (i, us) => (unit === "gb_s" ? y[unit][i] * y.us[i] / us : y[unit][i] * us / y.us[i]);
    const ends = spread.map((one, i) => {
      if (!one || !y.us[i] || y[unit][i] === null) return [0, 0];
      const both = [scaled(i, one[0]), scaled(i, one[1])].sort((a, b) => a - b);
      return [Math.max(0, y[unit][i] - both[0]), Math.max(0, both[1] - y[unit][i])];
    });
    return { error_y: { type: "data", symmetric: false, array: ends.map((one) => one[1]), arrayminus: ends.map((one) => one[0]),
      color: paint, thickness: 1.2, width: 3 } };
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
  function frame(plot, entries, right, entry) {
    const width = plot.clientWidth;
    const left = width < NARROW ? 48 : 64;
    // The legend is as wide as the axes, and plotly moves these right until tick labels and title fit.
    const legendRows = Math.ceil(entries / Math.max(1, Math.floor((width - Math.max(left, TICKS_AND_TITLE) - right) / (entry + 45))));
    // plotly gives a legend half of the figure, and beyond that a scroll bar of its own
    if (legendRows) plot.style.minHeight = `${2 * (legendRows + 1) * LEGEND_ROW}px`;
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

  function layout(spec, unit, budget, plot, entries) {
    const crossing = spec.crossings.find((one) => one.budget === budget);
    const ticks = spec.layout.xaxis.tickvals;
    const { title, type } = spec.units[unit];
    return {
      ...spec.layout,
      ...frame(plot, entries, spec.budgets.length > 1 ? 52 : 16, LEGEND_ENTRY),
      uirevision: unit,
      xaxis: { ...spec.layout.xaxis, ...axisLines() },
      yaxis: { ...axisLines(), type, automargin: true, title: { text: title, standoff: 8 }, rangemode: type === "linear" ? "tozero" : "normal",
        tickformat: "~g", exponentformat: "none", dtick: type === "log" ? "D2" : undefined },
      ...(crossing ? marked(crossing, [ticks[0], ticks[ticks.length - 1]]) : {}),
    };
  }

  // Plotly draws, and what was a picture by its label becomes a group: its buttons can be reached with the keyboard.
  // The size is told: left to itself, a figure drawn again for paper keeps that of the screen.
  function plotted(plot, traces, layout) {
    const width = plot.clientWidth;
    plot.setAttribute("role", "group");
    Plotly.react(plot, traces, { ...layout, width, height: plot.clientHeight }, { ...CONFIG, displayModeBar: width < NARROW ? false : "hover" });
  }

  function draw(panel) {
    if (panel.hidden || !window.Plotly) return;
    if (!panel.querySelector("input")) {
      const inside = [...panel.querySelectorAll(".plain-figure")];
      (inside.length ? inside : [panel]).forEach(drawPlain);
      return;
    }
    const spec = panel.spec || (panel.spec = JSON.parse(panel.querySelector(".figure-data").textContent));
    const chosen = (name) => {
      const inputs = [...panel.querySelectorAll("input")].filter((input) => input.name === `${panel.id}-${name}`);
      return (inputs.find((input) => input.checked) || inputs[0]).value;
    };
    const unit = chosen("unit"), budget = Number(chosen("budget"));
    const plot = panel.querySelector(".plot");
    const traces = spec.data.map((trace) => restyled(trace, unit, budget));
    const entries = traces.filter((trace) => trace.visible && trace.showlegend !== false).length;
    plotted(plot, traces, layout(spec, unit, budget, plot, entries));
  }

  // Cells from the paper's colour to the role's; every cell that has room carries its number, so that no colour has to be read.
  function heatMap(trace, paint, width) {
    const texttemplate = (width - TICKS_AND_TITLE) / trace.x.length < CELL_WIDTH ? "" : trace.texttemplate;
    const shade = (alpha) => `rgba(${[1, 3, 5].map((i) => parseInt(paint.slice(i, i + 2), 16)).join()},${alpha})`;
    return { ...trace, colorscale: [[0, shade(0.06)], [1, shade(0.5)]],
      showscale: false, xgap: 3, ygap: 3, textfont: { size: 13, ...trace.textfont, color: colour("ink") }, texttemplate, hoverongaps: false };
  }

  // A figure without controls: a trace's role is its colour, its hover texts come escaped, or as one template.
  function drawPlain(figure) {
    if (!window.Plotly || !figure.querySelector(".figure-data") || figure.closest("[hidden]")) return;
    const spec = figure.spec || (figure.spec = JSON.parse(figure.querySelector(".figure-data").textContent));
    const plot = figure.querySelector(".plot");
    const width = plot.clientWidth;
    const map = spec.data.find((trace) => trace.type === "heatmap");
    if (map) plot.style.minHeight = `${map.y.length * CELL_HEIGHT + 2 * TICKS_AND_TITLE}px`;
    const traces = spec.data.map((trace) => {
      const paint = colour(trace.meta.role);
      if (trace.type === "heatmap") return heatMap(trace, paint, width);
      const told = trace.hovertemplate ? {} : { hoverinfo: "text", hovertext: trace.meta.hover };
      return { ...trace, ...told, line: { ...trace.line, color: paint, width: 2 },
        marker: { ...trace.marker, color: paint, size: 9 },
        ...(trace.error_y ? { error_y: { ...trace.error_y, color: paint, thickness: 1.2, width: 3 } } : {}) };
    });
    const { xaxis, yaxis, barmode } = spec.layout;
    const ticks = (axis) => (axis.type === "log" && !axis.tickvals ? { tickformat: "~r", dtick: 1 } : { tickformat: "~g" });
    const lines = { ...axisLines(), showgrid: !map };  // a cell lets the grid through, across its number
    const axes = { xaxis: { ...xaxis, ...lines, ...(xaxis.tickvals ? {} : ticks(xaxis)) },
      yaxis: { ...yaxis, ...lines, ...ticks(yaxis), automargin: true } };
    const entries = map ? 0 : traces.filter((one) => one.showlegend !== false).length;
    plotted(plot, traces, { ...frame(plot, entries, 16, PLAIN_ENTRY), ...axes, ...(barmode ? { barmode } : {}),
      showlegend: !map });
  }

  // Shows the panel that agrees with most selectors, the one just changed before all others.
  function choose(scan, panels, changed) {
    const selects = [...scan.querySelectorAll("select")];
    const agree = (panel, select) => (panel.settings[select.dataset.setting] || "-") === select.value;
    // what the page was made with as selected is the panel to begin with
    const weight = (select) => (select === changed || (changed === null && select.querySelector("option[selected]")) ? 1000 : 1);
    const score = (panel) => selects.reduce((sum, select) => sum + agree(panel, select) * weight(select), 0);
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
  plain.forEach(drawPlain);
  const redraw = () => { all.forEach(draw); plain.forEach(drawPlain); };
  themes.forEach((theme) => theme.addEventListener("change", redraw));

  // The button takes the theme from the system to light, to dark, and back.
  const THEMES = { "": "as the system", light: "light", dark: "dark" };
  const button = document.querySelector(".theme");
  button.addEventListener("click", () => {
    const names = Object.keys(THEMES);
    const next = names[(names.indexOf(root.dataset.theme || "") + 1) % names.length];
    if (next) root.dataset.theme = next; else delete root.dataset.theme;
    button.textContent = `Theme: ${THEMES[next]}`;
    redraw();
  });

  // Paper has no buttons: what is folded opens, and what was closed closes again.
  let unfolded = [];
  addEventListener("beforeprint", () => {
    unfolded = [...document.querySelectorAll("details:not([open]):not(.records)")];
    unfolded.forEach((one) => { one.open = true; });
  });
  addEventListener("afterprint", () => { unfolded.forEach((one) => { one.open = false; }); });

  // A table as CSV: raw numbers where the table holds them. Text that a spreadsheet would run gets a quote mark.
  const number = /^[-+]?[0-9.]+(e[-+]?[0-9]+)?$/i;
  const quoted = (text) => {
    const safe = /^[=+\-@\t\r]/.test(text) && !number.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
  };
  const written = (cell) => cell.dataset.v || [...cell.childNodes].filter((one) => one.nodeName !== "ABBR")
    .map((one) => (one.nodeName === "BR" ? " " : one.textContent)).join("").replace(/\s+/g, " ").trim();
  function csv(table) {
    const held = [];
    return [...table.rows].map((row, i) => {
      const cells = held.splice(0).reduce((kept, one) => { if (one.left) held.push({ ...one, left: one.left - 1 }); kept[one.at] = one.text; return kept; }, []);
      [...row.cells].forEach((cell) => {
        let at = 0;
        while (cells[at] !== undefined) at += 1;
        for (let j = 0; j < cell.colSpan; j += 1) {
          cells[at + j] = written(cell);
          if (cell.rowSpan > 1) held.push({ at: at + j, text: written(cell), left: cell.rowSpan - 2 });
        }
      });
      return Array.from(cells, (text) => quoted(text || "")).join(",");
    }).join("\r\n") + "\r\n";
  }
  document.querySelectorAll(".table-box").forEach((box, i) => {
    const save = document.createElement("button");
    save.type = "button";
    save.className = "csv";
    save.textContent = "CSV";
    save.setAttribute("aria-label", `Download as CSV: ${box.getAttribute("aria-label") || "table"}`);
    save.addEventListener("click", () => {
      const section = box.closest("section");
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob(["\ufeff", csv(box.querySelector("table"))], { type: "text/csv" }));
      link.download = `questprof-${section ? section.id : "table"}-${i + 1}.csv`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    });
    box.after(save);
  });
  let waiting = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(redraw);
  });
})();
