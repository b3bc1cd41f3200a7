// Draws the live figures of a page from the numbers in it; see live.py. Where the page is served
// while runs are under way, it asks for what is new.
"use strict";
(() => {
  const at = (id) => document.getElementById(id);
  const numbers = (id) => (at(id) ? JSON.parse(at(id).textContent) : null);
  // Plotly takes tags in its texts for markup; names of arms are only text.
  const literal = (text) =>
    String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const narrow = () => window.innerWidth < 640;
  const chosen = {hidden: new Set(), known: new Set()}; // what the reader has switched
  const settings = () => ({
    responsive: true, displaylogo: false, scrollZoom: !narrow(), displayModeBar: !narrow(),
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
    toImageButtonOptions: {format: "svg"},
  });
  const base = (height) => ({
    height, margin: {l: 60, r: 12, t: 12, b: 48}, paper_bgcolor: "#fff", plot_bgcolor: "#fff",
    font: {family: 'system-ui, "Segoe UI", Arial, sans-serif', size: 13, color: "#1b1d21"},
    showlegend: false, hovermode: "closest", hoverlabel: {align: "left", namelength: -1},
    dragmode: narrow() ? false : "zoom",
  });
  const grid = {gridcolor: "#e4e6ea", zeroline: false, automargin: true};

  function fill(select, options, value) {
    const entries = options.map(([key, label]) => {
      const option = document.createElement("option");
      option.value = key;
      option.textContent = label;
      return option;
    });
    select.replaceChildren(...entries);
    if (options.some(([key]) => key === value)) select.value = value;
    return select.value;
  }

  function faded(colour) {
    const part = (from) => parseInt(colour.slice(from, from + 2), 16);
    return `rgba(${part(1)},${part(3)},${part(5)},0.18)`;
  }

  function drawCurves(found) {
    const up = chosen.up, across = chosen.across;
    const traces = [];
    for (const arm of found.arms) {
      const columns = arm.curves[up] && arm.curves[up][across];
      if (!columns || chosen.hidden.has(arm.name)) continue;
      const [x, mean, low, high] = columns;
      if (low) {
        const edge = {x, mode: "lines", line: {width: 0}, hoverinfo: "skip"};
        traces.push({...edge, y: low});
        traces.push({...edge, y: high, fill: "tonexty", fillcolor: faded(arm.colour)});
      }
      traces.push({
        x, y: mean, name: literal(arm.name), text: x.map(() => literal(arm.name)),
        mode: x.length > 1 ? "lines" : "markers",
        line: {color: arm.colour, dash: arm.dash, width: 2}, marker: {color: arm.colour},
        hovertemplate: "<b>%{text}</b><br>%{y:.4~g} at %{x:.4~s}<extra></extra>",
      });
    }
    const layout = {
      ...base(narrow() ? 320 : 440),
      uirevision: `${up} ${across} ${chosen.logarithmic}`, // what keeps a zoom
      xaxis: {...grid, title: {text: found.across[across]}, rangemode: "tozero"},
      yaxis: {
        ...grid, title: {text: found.up[up].label}, type: chosen.logarithmic ? "log" : "linear",
      },
      shapes: found.target !== null && up === "train_loss" ? [{
        type: "line", xref: "paper", x0: 0, x1: 1, y0: found.target, y1: found.target,
        line: {color: "#595959", width: 1, dash: "dash"},
      }] : [],
    };
    return Plotly.react(at("curves-plot"), traces, layout, settings());
  }

  function swatch(colour, dash) {
    const part = (name, attributes) => {
      const element = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
      return element;
    };
    const picture = part("svg", {viewBox: "0 0 36 8", width: 36, height: 8, "aria-hidden": true});
    picture.append(part("path", {
      d: "M0 4H36", stroke: colour, "stroke-width": 2.4,
      "stroke-dasharray": dash === "solid" ? "none" : dash.replaceAll("px", "").replaceAll(",", " "),
    }));
    return picture;
  }

  function listArms(found) {
    const groups = new Map();
    for (const arm of found.arms) {
      if (!groups.has(arm.group)) groups.set(arm.group, []);
      groups.get(arm.group).push(arm);
    }
    const sets = [...groups].map(([title, arms]) => {
      const set = document.createElement("fieldset"), legend = document.createElement("legend");
      legend.textContent = title;
      set.append(legend, ...arms.map((arm) => listed(arm, found)));
      return set;
    });
    at("curves-arms").replaceChildren(...sets);
  }

  function listed(arm, found) {
    const label = document.createElement("label"), box = document.createElement("input");
    box.type = "checkbox";
    box.checked = !chosen.hidden.has(arm.name);
    box.addEventListener("change", () => {
      if (box.checked) chosen.hidden.delete(arm.name);
      else chosen.hidden.add(arm.name);
      drawCurves(found);
    });
    label.append(box, swatch(arm.colour, arm.dash), arm.finished ? arm.name : `${arm.name} (under way)`);
    return label;
  }

  function showCurves() {
    const found = numbers("curves-data");
    if (!found || !Object.keys(found.up).length) return;
    for (const arm of found.arms) { // an arm that comes later is shown
      if (!chosen.known.has(arm.name) && !arm.shown) chosen.hidden.add(arm.name);
      chosen.known.add(arm.name);
    }
    const ups = Object.entries(found.up).map(([key, {label}]) => [key, label]);
    chosen.up = fill(at("curves-up"), ups, chosen.up);
    chosen.across = fill(at("curves-across"), Object.entries(found.across), chosen.across);
    if (chosen.logarithmic === undefined) chosen.logarithmic = found.up[chosen.up].logarithmic;
    at("curves-logarithmic").checked = chosen.logarithmic;
    at("curves-up").onchange = (event) => {
      chosen.up = event.target.value;
      chosen.logarithmic = found.up[chosen.up].logarithmic;
      at("curves-logarithmic").checked = chosen.logarithmic;
      drawCurves(found);
    };
    at("curves-across").onchange = (event) => {
      chosen.across = event.target.value;
      drawCurves(found);
    };
    at("curves-logarithmic").onchange = (event) => {
      chosen.logarithmic = event.target.checked;
      drawCurves(found);
    };
    const all = (hidden) => () => {
      chosen.hidden = new Set(hidden ? found.arms.map((arm) => arm.name) : []);
      listArms(found);
      drawCurves(found);
    };
    at("curves-all").onclick = all(false);
    at("curves-none").onclick = all(true);
    at("curves").hidden = false;
    listArms(found);
    drawCurves(found);
  }

  function drawStrip(found, strip) {
    const lanes = new Map(strip.workers.map((worker, lane) => [worker, lane]));
    const traces = found.kinds.map(({name, colour}, kind) => {
      const rows = strip.kind.flatMap((own, row) => (own === kind ? [row] : []));
      const of = (column) => rows.map((row) => column[row]);
      return {
        type: "bar", orientation: "h", name, width: 0.84,
        base: of(strip.begin), x: of(strip.seconds),
        y: rows.map((row) => lanes.get(strip.worker[row])),
        marker: {color: colour, line: {color: "#fff", width: 0.5}},
        text: rows.map((row) => {
          const met = strip.partner[row] === strip.worker[row] ? "" :
            `<br>meets worker ${strip.partner[row]}`;
          return `worker ${strip.worker[row]}: ${name} ${strip.seconds[row]} s` +
            `<br>from ${strip.begin[row]} s, for update ${strip.update[row]}` +
            `<br>${strip.mini_batches[row]} mini-batches, ${strip.staleness[row]} updates old${met}`;
        }),
        textposition: "none", hovertemplate: "%{text}<extra></extra>",
      };
    });
    traces.push({
      mode: "markers", x: strip.events.map((event) => event[2]),
      y: strip.events.map((event) => lanes.get(event[1])),
      text: strip.events.map((event) => `worker ${event[1]} is ${event[0]}`),
      marker: {symbol: "x", size: 9, color: "#000", line: {color: "#fff", width: 1}},
      hovertemplate: "%{text}<extra></extra>",
    });
    const every = Math.ceil(strip.workers.length / 16);
    const ticks = strip.workers.map((_, lane) => lane).filter((lane) => lane % every === 0);
    const layout = {
      ...base(110 + 22 * Math.max(3, strip.workers.length)),
      margin: {l: 60, r: 12, t: 32, b: 48}, // the buttons of the plot stand at the top
      barmode: "overlay", uirevision: `${strip.name} ${chosen.whole}`,
      xaxis: {
        ...grid, title: {text: "time [s]"},
        range: chosen.whole ? undefined : [0, strip.until], autorange: chosen.whole,
      },
      yaxis: {
        ...grid, title: {text: "worker"}, fixedrange: true, showgrid: false,
        tickvals: ticks, ticktext: ticks.map((lane) => `${strip.workers[lane]}`),
        range: [strip.workers.length - 0.5, -0.5],
      },
    };
    return Plotly.react(at("strips-plot"), traces, layout, settings());
  }

  function showStrips() {
    const found = numbers("strips-data");
    if (!found || !found.arms.length) return;
    chosen.whole = chosen.whole || false;
    const draw = () => drawStrip(found, found.arms[Number(chosen.strip)]);
    const names = found.arms.map((arm, place) => [`${place}`, arm.name]);
    chosen.strip = fill(at("strips-arm"), names, chosen.strip);
    at("strips-arm").onchange = (event) => {
      chosen.strip = event.target.value;
      draw();
    };
    at("strips-whole").onclick = () => {
      chosen.whole = !chosen.whole;
      at("strips-whole").textContent = chosen.whole ? "first rounds" : "whole beginning";
      draw();
    };
    at("strips").hidden = false;
    draw();
  }

  function show() {
    for (const still of document.querySelectorAll("details.still")) still.open = false;
    showCurves();
    showStrips();
  }

  // The plots stay, so that a zoom does; all around them is new.
  function replace(text) {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    for (const id of ["curves-plot", "strips-plot"]) {
      const old = at(id), place = fresh.getElementById(id);
      if (old && place) place.replaceWith(document.adoptNode(old));
    }
    document.querySelector("main").replaceChildren(...fresh.body.childNodes);
    show();
  }

  async function watch(version) {
    const state = at("watched");
    for (;;) {
      await new Promise((wake) => setTimeout(wake, 1000));
      let answer;
      try {
        answer = await (await fetch(`records?after=${version}`)).json();
      } catch {
        state.textContent = "This page is no longer served; it shows the last records that arrived.";
        return;
      }
      if (answer.main !== undefined) replace(answer.main);
      version = answer.version;
      state.textContent = answer.state;
      if (answer.ended) return;
    }
  }

  show();
  if (at("watched")) watch(Number(at("watched").dataset.version));
})();
