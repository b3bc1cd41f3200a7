// Fills the live figures of a page with the data in it; see report.py. Where the page is served
// while runs are under way, it asks for what is new.
"use strict";
(async () => {
  const at = (id) => document.getElementById(id);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const hidden = new Set(), known = new Set(), chosen = {}; // by the reader
  let data;

  async function unpacked(id) {
    const bytes = Uint8Array.from(atob(at(id).textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  function options(id, names, first) {
    const select = at(id), before = chosen[id] ?? first;
    select.replaceChildren(...names.map((name) => new Option(name, name)));
    select.value = names.includes(before) ? before : names[0];
    return (chosen[id] = select.value);
  }

  function plot(id, traces, layout) {
    const narrow = innerWidth < 640, clear = "rgba(0,0,0,0)";
    const [ink, rule] = dark.matches ? ["#e6e8ea", "#3a3f46"] : ["#1b1d21", "#e4e6ea"];
    const axis = {gridcolor: rule, linecolor: rule, zeroline: false, automargin: true};
    const template = {layout: {
      font: {family: "system-ui, 'Segoe UI', Arial, sans-serif", size: 13, color: ink},
      paper_bgcolor: clear, plot_bgcolor: clear, xaxis: axis, yaxis: axis,
      margin: {l: 60, r: 12, t: 28, b: 48}, hoverlabel: {align: "left", namelength: -1},
      modebar: {bgcolor: clear, color: "#8a9099", activecolor: ink},
    }};
    Plotly.react(at(id), traces, {
      hovermode: "closest", dragmode: narrow ? false : "zoom", template, ...layout,
    }, {
      responsive: true, displaylogo: false, displayModeBar: !narrow, scrollZoom: false,
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
      toImageButtonOptions: {format: "svg"},
    });
  }

  function drawCurves() {
    const up = options("up", Object.keys(data.axes));
    const across = options("across", Object.keys(data.axes[up]));
    const {columns, target, label, top, ...axes} = data.axes[up][across];
    const logarithmic = (chosen[`${up} log`] ??= axes.logarithmic);
    at("logarithmic").checked = logarithmic;
    const traces = data.traces.flatMap((trace, arm) => {
      if (hidden.has(trace.meta) || !columns[arm]) return [];
      const [x, y, low, high] = columns[arm];
      const band = {
        x: x.concat(x.toReversed()), y: low && high.concat(low.toReversed()), fill: "toself",
        fillcolor: trace.line.color, opacity: 0.18, line: {width: 0}, mode: "lines",
        hoverinfo: "skip",
      };
      const name = "<b>%{fullData.name}</b><extra></extra>";
      return [...(low ? [band] : []), {
        ...trace, x, y, mode: x.length > 1 ? "lines" : "markers",
        hovertemplate: `${name}<br>${up}: %{y:.4~g}<br>${across}: %{x:.4~s}`,
      }];
    });
    plot("curves", traces, {
      height: innerWidth < 640 ? 340 : 460, showlegend: false,
      xaxis: {title: {text: across}, rangemode: "tozero"},
      yaxis: {
        title: {text: up}, type: logarithmic ? "log" : "linear",
        tickformat: "~g", // whole numbers between the powers of ten, too
        ...(top !== null && {autorangeoptions: {clipmax: top}}),
      },
      shapes: target === null ? [] : [{
        type: "line", x0: 0, x1: 1, xref: "paper", y0: target, y1: target,
        label: {text: label, textposition: "end"},
        line: {width: 1, dash: "dash", color: "#808080"},
      }],
      uirevision: `${up} ${across} ${logarithmic}`, // what keeps a zoom
    });
    for (const box of document.querySelectorAll("[data-arm]")) {
      box.checked = !hidden.has(data.names[box.dataset.arm]);
    }
  }

  function tracesOf({bars, events, lanes}) {
    const lane = new Map(lanes.map((worker, place) => [worker, place]));
    const about = ([, seconds, kind, worker, update, batches, age, partner]) => [
      worker, kind, update, batches, age, partner === worker ? "" : `<br>meets worker ${partner}`, seconds,
    ];
    return [{
      type: "bar", orientation: "h", width: 0.84, base: bars.map((bar) => bar[0]),
      x: bars.map((bar) => bar[1]), y: bars.map((bar) => lane.get(bar[3])), customdata: bars.map(about),
      marker: {line: {width: 0}, color: bars.map((bar) => data.kinds[bar[2]])},
      hovertemplate: "worker %{customdata[0]}: %{customdata[1]} %{customdata[6]} s<br>from %{base} s, for " +
        "update %{customdata[2]}<br>%{customdata[3]} mini-batches, %{customdata[4]} updates old" +
        "%{customdata[5]}<extra></extra>", // the bar's own x is its end
    }, {
      type: "scatter", mode: "markers", marker: {symbol: "x", size: 9, color: "#808080"},
      x: events.map(([time]) => time), y: events.map(([, worker]) => lane.get(worker)),
      text: events.map(([, worker, kind]) => `worker ${worker} is ${kind}`),
      hovertemplate: "%{text}, %{x} s<extra></extra>",
    }];
  }

  function drawStrips() {
    const names = data.strips.map(({name}) => name);
    if (!names.length) return;
    const of = (name) => data.strips.find((strip) => strip.name === name);
    const shown = [of(options("upper", names)), of(options("lower", [...names, "–"], names[1] ?? "–"))];
    const strips = shown.filter(Boolean), all = strips.reduce((sum, {lanes}) => sum + lanes.length, 0);
    const layout = {barmode: "overlay", height: 110 + 22 * Math.max(4, all) + 34 * strips.length};
    layout.annotations = [];
    let top = 1;
    const traces = strips.flatMap(({lanes, title}, place) => {
      const gap = 26 / (layout.height - 76), axis = place ? "y2" : "y";
      const share = (1 - gap * strips.length) * lanes.length / all;
      const step = Math.ceil(lanes.length / 16);
      const places = lanes.map((_, lane) => lane).filter((lane) => lane % step === 0);
      layout[place ? "yaxis2" : "yaxis"] = {
        domain: [Math.max(0, top - gap - share), top - gap], range: [lanes.length - 0.5, -0.5],
        fixedrange: true, showgrid: false, title: {text: "worker"},
        tickvals: places, ticktext: places.map((lane) => `${lanes[lane]}`),
      };
      layout.annotations.push({
        text: title, showarrow: false, xref: "paper", x: 0, yref: "paper", y: top - gap,
        xanchor: "left", yanchor: "bottom",
      });
      top -= gap + share;
      return tracesOf(strips[place]).map((trace) => ({...trace, yaxis: axis}));
    });
    const drawn = strips.map(({known}) => known).filter((seconds) => seconds !== null);
    plot("strips", traces, {
      ...layout, uirevision: `${chosen.upper} ${chosen.lower}`, showlegend: false,
      xaxis: {
        title: {text: "time [s]"}, anchor: strips.length > 1 ? "y2" : "y",
        range: [0, Math.min(Math.max(...strips.map(({until}) => until)), ...drawn)],
      },
    });
  }

  async function show() {
    if (!at("data")) return;
    data = JSON.parse(await unpacked("data"));
    for (const name of data.names) { // an arm that comes later is shown, unless there are many
      if (!known.has(name) && !data.shown.includes(name)) hidden.add(name);
      known.add(name);
    }
    if (!Object.keys(data.axes).length) return;
    at("live").hidden = false;
    at("stills").hidden = true;
    drawCurves();
    drawStrips();
  }

  document.addEventListener("change", ({target}) => {
    if (target.dataset.arm) {
      const name = data.names[target.dataset.arm];
      if (target.checked) hidden.delete(name);
      else hidden.add(name);
    } else if (target.id === "logarithmic") chosen[`${chosen.up} log`] = target.checked;
    else if (target.tagName === "SELECT") chosen[target.id] = target.value;
    if (target.id === "upper" || target.id === "lower") drawStrips();
    else drawCurves();
  });
  document.addEventListener("click", ({target}) => {
    if (target.id === "all") hidden.clear();
    if (target.id === "none") data.names.forEach((name) => hidden.add(name));
    if (target.id === "all" || target.id === "none") drawCurves();
  });

  // The plots stay, so that a zoom does; all around them is new.
  async function replace(text) {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    for (const id of ["curves", "strips"]) {
      const old = at(id), place = fresh.getElementById(id);
      if (old && place) place.replaceWith(document.adoptNode(old));
    }
    const open = [...document.querySelectorAll("details")].map((part) => part.open);
    document.querySelector("header").replaceWith(fresh.querySelector("header"));
    document.querySelector("main").replaceWith(fresh.querySelector("main"));
    document.querySelectorAll("details").forEach((part, place) => (part.open = open[place]));
    await show();
  }

  async function watch(version) {
    for (;;) {
      await new Promise((wake) => setTimeout(wake, 1000));
      let answer, text;
      try {
        answer = await (await fetch("/state")).json();
        if (answer.version !== version) text = await (await fetch("/")).text();
      } catch {
        at("watched").textContent = "This page is no longer served; it shows the last records that arrived.";
        return;
      }
      if (text) await replace(text);
      version = answer.version;
      at("watched").textContent = answer.state;
      if (answer.ended) return;
    }
  }

  const library = document.createElement("script");
  library.textContent = await unpacked("plotly");
  document.head.append(library);
  dark.addEventListener("change", show);
  await show();
  if (at("watched")) watch(Number(at("watched").dataset.version));
})();
